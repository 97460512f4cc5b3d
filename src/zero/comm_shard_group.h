// The ranks of a group as an optimizer sees them (optim/shard_group.h), from the layout that cuts
// tensors among them.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "optim/shard_group.h"
#include "zero/flat_layout.h"

namespace ds::zero {

class CommShardGroup : public optim::ShardGroup {
 public:
  // `tensors` are the optimizer's, as parameters.
  CommShardGroup(const FlatLayout& layout, std::vector<nn::ParamId> tensors,
                 std::shared_ptr<Communicator> comm, std::shared_ptr<Device> device)
      : layout_(layout),
        tensors_(std::move(tensors)),
        comm_(std::move(comm)),
        device_(std::move(device)) {}

  int rank() const override { return layout_.rank(); }
  int size() const override { return layout_.world(); }
  optim::OwnedRange part(size_t tensor, int rank) const override {
    const OwnedPart part = layout_.part(tensors_[tensor], rank);
    return {part.first, part.first + part.count};
  }
  void sum(std::span<int64_t> words) override;
  void exchange(const Tensor& received, std::span<const int64_t> received_counts,
                const Tensor& sent, std::span<const int64_t> sent_counts) override;

 private:
  const FlatLayout& layout_;
  std::vector<nn::ParamId> tensors_;
  std::shared_ptr<Communicator> comm_;
  std::shared_ptr<Device> device_;
};

}  // namespace ds::zero
