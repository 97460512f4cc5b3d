// The line that Megatron's training prints every log interval, field by field, for programs that
// read its logs.
#pragma once

#include <cstdint>
#include <string>

#include "ds.hpp"
#include "format.h"

namespace tool {

class MegatronLog {
 public:
  // `model` is the model's config.json, whose sizes the rate of arithmetic follows from. `recompute`:
  // backward passes compute the activations again. `samples`: those before the first step.
  MegatronLog(const Json& model, int64_t sequence_length, int ranks, bool recompute,
              int64_t samples);

  void add(const libds::StepReport& report);
  // Of the steps since the last line; `total` are those of the whole run.
  std::string line(int64_t total);

 private:
  double flops_per_sample() const;

  Json model_;
  int64_t length_;
  int ranks_;
  bool recompute_;
  // Since the last line.
  int64_t steps_ = 0, applied_ = 0, bad_losses_ = 0;
  double seconds_ = 0, loss_ = 0;
  // Of the last step.
  libds::StepReport last_{};
  int64_t samples_;  // so far
  int64_t batch_ = 0;
};

}  // namespace tool
