// The three batch sizes and their arithmetic:
// train_batch = micro_batch * accumulation * data_parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ds {

struct BatchConfig {
  int64_t train_batch = 1;   // samples per optimizer step over all ranks
  int64_t micro_batch = 1;   // samples per pass on one rank
  int64_t accumulation = 1;  // passes per optimizer step
  int64_t data_parallel = 1;

  // Changes the accumulation alone; `samples` must be a multiple of micro_batch * data_parallel.
  void set_train_batch(int64_t samples);
};

// Megatron's --rampup-batch-size: the train batch begins small and grows by equal increments, which
// are spread evenly over the first samples.
struct BatchRampUp {
  int64_t start = 1;
  int64_t increment = 1;
  int64_t samples = 1;  // consumed ones, until the full size
  int64_t full = 1;     // the train batch of the configuration

  // Samples of the step that begins when all ranks have consumed so many.
  int64_t size_after(int64_t consumed) const;
};

// Says what makes a ramp-up impossible with these batch sizes; empty when nothing does.
std::string ramp_up_problem(const BatchRampUp& ramp_up, const BatchConfig& batch);

// The number of ranks for which the three sizes agree, if there is one.
std::optional<int64_t> world_of_batch(int64_t train_batch, int64_t micro_batch,
                                      int64_t accumulation);

// Completes what is given. Every failure names all four numbers.
BatchConfig resolve_batch(std::optional<int64_t> train_batch, std::optional<int64_t> micro_batch,
                          std::optional<int64_t> accumulation, int64_t data_parallel);

}  // namespace ds
