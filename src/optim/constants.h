// Hyperparameters of one group to what the update kernels multiply by, in double until the end.
#pragma once

#include "config/config.h"
#include "kernels/optimizer/update.h"
#include "optim/optimizer.h"

namespace ds::optim {

// One group at one step.
struct GroupStep {
  const OptimizerConfig* config = nullptr;  // with the group's overrides
  double lr = 0;
  double beta1 = 0;  // momentum of SGD and of Muon's matrices
  double beta2 = 0;
  int64_t step = 1;  // the update about to be made, from 1
  float grad_scale = 1;
  bool decays = false;
};

kernels::UpdateConstants adam_constants(const GroupStep& step);
kernels::UpdateConstants adagrad_constants(const GroupStep& step);
kernels::UpdateConstants lion_constants(const GroupStep& step);
kernels::UpdateConstants sgd_constants(const GroupStep& step);
// LAMB: for the moments and norms; then with lamb_rate times the trust ratio as step_size.
kernels::UpdateConstants lamb_constants(const GroupStep& step);
double lamb_rate(const GroupStep& step);

// The momentum of an optimizer that has one, else beta1.
double first_coefficient(const OptimizerConfig& config);

}  // namespace ds::optim
