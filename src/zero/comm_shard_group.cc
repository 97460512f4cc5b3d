#include "zero/comm_shard_group.h"

#include <algorithm>

#include "comm/message_memory.h"
#include "tensor/transfer.h"

namespace ds::zero {

CommShardGroup::CommShardGroup(const FlatLayout& layout, int domain,
                               std::span<const nn::ParamId> ids, std::shared_ptr<Communicator> comm,
                               std::shared_ptr<Device> device)
    : layout_(layout),
      domain_(domain),
      ids_(ids.begin(), ids.end()),
      comm_(std::move(comm)),
      device_(std::move(device)) {
  for (size_t i = 0; i < ids_.size(); ++i) {
    const Bucket& bucket = layout.buckets()[layout.bucket_of(ids_[i])];
    if (bucket.domain == domain) tensors_.push_back(i);
  }
}

optim::ShardGroups make_shard_groups(const FlatLayout& layout, std::span<const nn::ParamId> ids,
                                     std::span<const std::shared_ptr<Communicator>> comms,
                                     const std::shared_ptr<Device>& device) {
  optim::ShardGroups out;
  for (int domain = 0; const std::shared_ptr<Communicator>& comm : comms) {
    if (layout.world(domain) > 1) {
      auto group = std::make_shared<CommShardGroup>(layout, domain, ids, comm, device);
      if (!group->tensors().empty()) out.push_back(std::move(group));
    }
    ++domain;
  }
  return out;
}

void CommShardGroup::sum(std::span<int64_t> words) {
  const Tensor all =
      comm::message_memory(*comm_, device_, DType::kInt64, {static_cast<int64_t>(words.size())},
                           MemoryTag::kCommunication);
  std::copy(words.begin(), words.end(), all.data<int64_t>());
  comm_->all_reduce(all, ReduceOp::kSum, {.label = "optimizer norms", .blocking = true})->wait();
  std::copy_n(all.data<int64_t>(), words.size(), words.begin());
}

void CommShardGroup::exchange(const Tensor& received, std::span<const int64_t> received_counts,
                              const Tensor& sent, std::span<const int64_t> sent_counts) {
  comm_
      ->all_to_all_v(received, sent, received_counts, sent_counts,
                     {.label = "optimizer matrices", .blocking = on_host(sent)})
      ->wait();
}

}  // namespace ds::zero
