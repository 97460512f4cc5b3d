#include "engine/step_totals.h"

#include <limits>

#include "comm/message_memory.h"
#include "engine/open_step.h"

namespace ds {

StepTotals exchange_totals(const std::shared_ptr<Device>& host, const RankGroup& ranks,
                           OpenStep& open, bool distils) {
  if (ranks.size == 1) {
    return {0, open.losses.count(), open.tokens, open.own_micro_batches, open.own_samples};
  }
  const Tensor totals = comm::message_memory(*ranks.comm, host, DType::kFloat64, {distils ? 7 : 5},
                                             MemoryTag::kWorkspace);
  double* const sum = totals.data<double>();
  sum[0] = open.losses.value();
  sum[1] = static_cast<double>(open.tokens);
  sum[2] = static_cast<double>(open.own_micro_batches);
  sum[3] = static_cast<double>(open.own_samples);
  sum[4] = static_cast<double>(open.losses.count());
  if (distils) {
    sum[5] = open.label_losses.value();
    sum[6] = open.teacher_losses.value();
  }
  ranks->all_reduce(totals, ReduceOp::kSum, {.label = "loss", .blocking = true})->wait();
  return {sum[0] / ranks.size,
          static_cast<int64_t>(sum[4]),
          static_cast<int64_t>(sum[1]),
          static_cast<int64_t>(sum[2]),
          static_cast<int64_t>(sum[3]),
          distils ? sum[5] / ranks.size : 0,
          distils ? sum[6] / ranks.size : 0};
}

bool uneven(const StepTotals& totals, const OpenStep& open, int ranks) {
  return totals.batches != open.micro_batches * ranks;
}

double mean_loss(double sum, const StepTotals& totals, const OpenStep& open, int ranks,
                 double share) {
  if (totals.losses == 0) return std::numeric_limits<double>::quiet_NaN();
  if (totals.losses == totals.batches) {
    return sum / static_cast<double>(open.micro_batches) * share;
  }
  return sum * ranks / static_cast<double>(totals.losses);
}

}  // namespace ds
