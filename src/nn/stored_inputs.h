// Inputs that checkpointed segments keep, in array stores such as files from forward to backward:
// written behind the pass and read ahead of it, so that memory holds those of a segment or two,
// whatever their number. They come back with the same bits. Beside a GPU the host waits for what a
// segment keeps, and the file for the host: the GPU has nothing to do while it is copied.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "nn/kept_inputs.h"
#include "tensor/store_room.h"

namespace ds::nn {

class StoredInputs final : public KeptInputs {
 public:
  // Of one pass. Several may use a room, from one thread.
  explicit StoredInputs(StoreRoom& room) : room_(room) {}
  // Gives all room back.
  ~StoredInputs() override;

  // Throws where a store has no room, or where an earlier write has failed.
  size_t keep(std::span<const Tensor> inputs) override;
  // The segment before is read meanwhile.
  std::vector<Tensor> fetch(size_t segment) override;

 private:
  // Segments that keep the same tensor share one. Its room is free when the last one is fetched.
  class Kept;
  using Segment = std::vector<std::shared_ptr<Kept>>;

  std::shared_ptr<Kept> store(const Tensor& x);

  StoreRoom& room_;
  std::vector<Segment> segments_;
  std::vector<std::weak_ptr<Kept>> stored_;
};

}  // namespace ds::nn
