// The ranks of a group as an optimizer sees them (optim/shard_group.h), from the layout that cuts
// tensors among them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "optim/shard_group.h"
#include "zero/flat_layout.h"

namespace ds::zero {

class CommShardGroup : public optim::ShardGroup {
 public:
  // Of a gradient domain; `ids` are the optimizer's tensors of all domains.
  CommShardGroup(const FlatLayout& layout, int domain, std::span<const nn::ParamId> ids,
                 std::shared_ptr<Communicator> comm, std::shared_ptr<Device> device);

  int rank() const override { return layout_.rank(domain_); }
  int size() const override { return layout_.world(domain_); }
  std::span<const size_t> tensors() const override { return tensors_; }
  optim::OwnedRange part(size_t tensor, int rank) const override {
    const OwnedPart part = layout_.part(ids_[tensor], rank);
    return {part.first, part.first + part.count};
  }
  void sum(std::span<int64_t> words) override;
  void exchange(const Tensor& received, std::span<const int64_t> received_counts,
                const Tensor& sent, std::span<const int64_t> sent_counts) override;

 private:
  const FlatLayout& layout_;
  int domain_;
  std::vector<nn::ParamId> ids_;  // by tensor
  std::vector<size_t> tensors_;
  std::shared_ptr<Communicator> comm_;
  std::shared_ptr<Device> device_;
};

// One for each domain that several ranks cut and that has some of the tensors; `comms` are by
// domain, of these ranks.
optim::ShardGroups make_shard_groups(const FlatLayout& layout, std::span<const nn::ParamId> ids,
                                     std::span<const std::shared_ptr<Communicator>> comms,
                                     const std::shared_ptr<Device>& device);

}  // namespace ds::zero
