// Adam and AdamW over flat ranges: holds the moments of the part of the flat space that this rank
// owns, and the step count.
#pragma once

#include <span>

#include "ops/adam.h"
#include "ops/context.h"

namespace ds::optim {

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;
  bool bias_correction = true;
};

// A range of the flat space that shares hyperparameters.
struct UpdateRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool decays = false;
};

struct UpdateStep {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  float grad_scale = 1;
};

class Adam {
 public:
  // Moments for [begin, end) of the flat space.
  Adam(const AdamOptions& options, const std::shared_ptr<Device>& device, int64_t begin,
       int64_t end);

  // Updates masters (and the model copy when there is one) in place; tensors span the flat space.
  void step(const OpContext& ctx, const UpdateStep& step, std::span<const UpdateRange> ranges,
            Tensor& masters, const Tensor& gradients, Tensor& model);

  const AdamOptions& options() const { return options_; }
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  Tensor& exp_avg() { return exp_avg_; }
  Tensor& exp_avg_sq() { return exp_avg_sq_; }

 private:
  AdamOptions options_;
  int64_t begin_;
  int64_t end_;
  Tensor exp_avg_;
  Tensor exp_avg_sq_;
  int64_t steps_ = 0;
};

}  // namespace ds::optim
