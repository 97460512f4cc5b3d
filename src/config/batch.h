// The three batch sizes and their arithmetic:
// train_batch = micro_batch * accumulation * data_parallel.
#pragma once

#include <cstdint>
#include <optional>

namespace ds {

struct BatchConfig {
  int64_t train_batch = 1;   // samples per optimizer step over all ranks
  int64_t micro_batch = 1;   // samples per pass on one rank
  int64_t accumulation = 1;  // passes per optimizer step
  int64_t data_parallel = 1;

  // Changes the accumulation alone; `samples` must be a multiple of micro_batch * data_parallel.
  void set_train_batch(int64_t samples);
  // Changes the train batch with it; the accumulation stays.
  void set_micro_batch(int64_t samples);
};

// The number of ranks for which the three sizes agree, if there is one.
std::optional<int64_t> world_of_batch(int64_t train_batch, int64_t micro_batch,
                                      int64_t accumulation);

// Completes what is given. Every failure names all four numbers.
BatchConfig resolve_batch(std::optional<int64_t> train_batch, std::optional<int64_t> micro_batch,
                          std::optional<int64_t> accumulation, int64_t data_parallel);

}  // namespace ds
