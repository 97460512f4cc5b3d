// Inputs that checkpointed segments keep, in host memory from forward to backward: what a GPU holds
// of them does not grow with the number of segments. Copies travel on a stream of their own,
// ordered with the kernels by events alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "nn/kept_inputs.h"

namespace ds::nn {

class ActivationOffload final : public KeptInputs {
 public:
  // Of one pass on a GPU. `copies` belongs to it, and to nobody else meanwhile.
  ActivationOffload(std::shared_ptr<Device> gpu, Stream& copies);
  // Waits for the copies that are still under way.
  ~ActivationOffload() override;
  ActivationOffload(const ActivationOffload&) = delete;
  ActivationOffload& operator=(const ActivationOffload&) = delete;

  // Begins to copy, and lets go of what the segment before it kept.
  size_t keep(std::span<const Tensor> inputs) override;
  // The segment before begins to travel back.
  std::vector<Tensor> fetch(size_t segment) override;

 private:
  // Segments that keep the same tensor share one. Somebody else may hold it too: then it is found
  // again, and only the way out was for nothing.
  struct Kept {
    Tensor host;  // none: it stays on the GPU
    Tensor gpu;   // while a copy uses it
    TensorMark mark;
    std::shared_ptr<Event> copied;
  };
  using Segment = std::vector<std::shared_ptr<Kept>>;

  std::shared_ptr<Kept> find(const Tensor& x) const;
  bool travels(const Tensor& x) const;
  Tensor host_memory_for(const Tensor& x) const;
  void send(Segment& fresh);
  void bring(Segment& segment);
  void free_sent();

  const std::shared_ptr<Device> gpu_;
  const std::shared_ptr<Device> host_;
  Stream& copies_;
  std::vector<Segment> segments_;
  Segment kept_;  // all that have a copy on the host, until the end: copies may still read it
  Segment sent_;  // by the newest segment
};

}  // namespace ds::nn
