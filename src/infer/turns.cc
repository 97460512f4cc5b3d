#include "infer/turns.h"

#include "comm/message_memory.h"

namespace ds::infer {

Turns::Turns(const OpContext& ctx, const RankGroup& ranks) : ranks_(ranks) {
  if (!ranks_) return;
  goes_on_ = comm::message_memory(*ranks_.comm, host_of(ctx).device, DType::kInt32, {1},
                                  MemoryTag::kWorkspace);
}

bool Turns::take(bool goes_on) {
  if (!ranks_) return goes_on;
  *goes_on_.data<int32_t>() = goes_on ? 1 : 0;
  ranks_->all_reduce(goes_on_, ReduceOp::kMax, {.label = "turns", .blocking = true})->wait();
  return *goes_on_.data<int32_t>() != 0;
}

void Turns::serve(Decoder& decoder) {
  while (ranks_ && take(false)) pass([&] { decoder.take_part(); });
}

}  // namespace ds::infer
