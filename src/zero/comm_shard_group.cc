#include "zero/comm_shard_group.h"

#include <algorithm>

#include "tensor/transfer.h"

namespace ds::zero {

void CommShardGroup::sum(std::span<int64_t> words) {
  const Tensor all = Tensor::empty(host_memory_of(device_), DType::kInt64,
                                   {static_cast<int64_t>(words.size())}, MemoryTag::kCommunication);
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
