#include "config/batch.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ds {
namespace {

std::string number_or_unset(std::optional<int64_t> value) {
  return value ? std::to_string(*value) : "(unset)";
}

// Product of positive factors, or nothing when it does not fit.
std::optional<int64_t> product(int64_t a, int64_t b, int64_t c) {
  int64_t ab = 0, abc = 0;
  if (__builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc)) return {};
  return abc;
}

// Which worlds the given sizes would fit; "" when none.
std::string fitting_worlds(std::optional<int64_t> train_batch, std::optional<int64_t> micro_batch,
                           std::optional<int64_t> accumulation) {
  if (!train_batch) return {};
  if (micro_batch && accumulation) {
    const auto world = world_of_batch(*train_batch, *micro_batch, *accumulation);
    return world ? str_cat("; these sizes fit ", *world, *world == 1 ? " rank" : " ranks") : "";
  }
  const int64_t unit = micro_batch.value_or(accumulation.value_or(1));
  if (*train_batch % unit != 0) return {};
  const int64_t shares = *train_batch / unit;
  return shares == 1 ? "; these sizes fit 1 rank"
                     : str_cat("; these sizes fit a number of ranks that divides ", shares);
}

}  // namespace

std::optional<int64_t> world_of_batch(int64_t train_batch, int64_t micro_batch,
                                      int64_t accumulation) {
  int64_t unit = 0;
  if (__builtin_mul_overflow(micro_batch, accumulation, &unit) || unit < 1) return {};
  if (train_batch < unit || train_batch % unit != 0) return {};
  return train_batch / unit;
}

BatchConfig resolve_batch(std::optional<int64_t> train_batch, std::optional<int64_t> micro_batch,
                          std::optional<int64_t> accumulation, int64_t data_parallel) {
  DS_CHECK(data_parallel >= 1, Code::kInvalidArgument, "data-parallel size ", data_parallel,
           " is not positive");
  DS_CHECK(train_batch || micro_batch, Code::kConfig,
           "configuration: no batch size: give /train_batch_size or "
           "/train_micro_batch_size_per_gpu (gradient_accumulation_steps is ",
           number_or_unset(accumulation), ", the data-parallel size ", data_parallel, ")");
  for (const auto& given : {train_batch, micro_batch, accumulation}) {
    DS_CHECK(!given || *given >= 1, Code::kConfig,
             "configuration: batch sizes must be positive: train_batch_size ",
             number_or_unset(train_batch), ", train_micro_batch_size_per_gpu ",
             number_or_unset(micro_batch), ", gradient_accumulation_steps ",
             number_or_unset(accumulation), ", data-parallel size ", data_parallel);
  }

  BatchConfig out;
  out.data_parallel = data_parallel;
  if (train_batch && micro_batch) {
    out.train_batch = *train_batch;
    out.micro_batch = *micro_batch;
    out.accumulation = accumulation ? *accumulation : *train_batch / *micro_batch / data_parallel;
  } else if (train_batch) {
    out.train_batch = *train_batch;
    out.accumulation = accumulation.value_or(1);
    out.micro_batch = *train_batch / data_parallel / out.accumulation;
  } else {
    out.micro_batch = *micro_batch;
    out.accumulation = accumulation.value_or(1);
    const auto samples = product(out.micro_batch, out.accumulation, data_parallel);
    DS_CHECK(samples, Code::kConfig, "configuration: train_micro_batch_size_per_gpu ",
             out.micro_batch, " x gradient_accumulation_steps ", out.accumulation,
             " x data-parallel size ", data_parallel, " gives a train_batch_size beyond 64 bits");
    out.train_batch = *samples;
  }
  const auto samples = product(out.micro_batch, out.accumulation, data_parallel);
  DS_CHECK(samples == out.train_batch && out.micro_batch > 0 && out.accumulation > 0, Code::kConfig,
           "configuration: train_batch_size ", out.train_batch,
           " is not train_micro_batch_size_per_gpu ", out.micro_batch,
           micro_batch ? "" : " (derived)", " x gradient_accumulation_steps ", out.accumulation,
           accumulation || !train_batch || !micro_batch ? "" : " (derived)",
           " x data-parallel size ", data_parallel,
           fitting_worlds(train_batch, micro_batch, accumulation));
  return out;
}

void BatchConfig::set_train_batch(int64_t samples) {
  int64_t unit = 0;
  const bool overflow = __builtin_mul_overflow(micro_batch, data_parallel, &unit);
  DS_CHECK(!overflow && samples >= 1 && samples % unit == 0, Code::kInvalidArgument,
           "train batch size ", samples, " is not a positive multiple of micro batch size ",
           micro_batch, " x data-parallel size ", data_parallel);
  train_batch = samples;
  accumulation = samples / unit;
}

// In doubles, as Megatron computes it: the same sizes at the same samples.
int64_t BatchRampUp::size_after(int64_t consumed) const {
  if (consumed > samples || start == full) return full;
  const int64_t increments = (full - start) / increment;
  const double samples_per_increment =
      static_cast<double>(samples) / static_cast<double>(increments);
  const auto done = static_cast<int64_t>(static_cast<double>(consumed) / samples_per_increment);
  return start + std::min(done, increments) * increment;
}

std::string ramp_up_problem(const BatchRampUp& ramp_up, const BatchConfig& batch) {
  const auto& [start, increment, samples, full] = ramp_up;
  if (start > full) {
    return str_cat("starts with ", start, " samples, more than train_batch_size ", full);
  }
  if ((full - start) % increment != 0) {
    return str_cat("steps of ", increment, " samples do not lead from ", start,
                   " to train_batch_size ", full);
  }
  const int64_t unit = batch.micro_batch * batch.data_parallel;
  for (const int64_t size : {start, full - start > 0 ? increment : start}) {
    if (size % unit == 0) continue;
    return str_cat(size, " samples are no multiple of train_micro_batch_size_per_gpu ",
                   batch.micro_batch, " x data-parallel size ", batch.data_parallel);
  }
  return {};
}

}  // namespace ds
