#include "optim/constants.h"

#include <cmath>

namespace ds::optim {
namespace {

// 1 - beta^t without the cancellation of small t * (1 - beta).
double one_minus_power(double beta, int64_t t) {
  return beta == 0 ? 1.0 : -std::expm1(static_cast<double>(t) * std::log(beta));
}

kernels::UpdateConstants with_betas(const GroupStep& step) {
  kernels::UpdateConstants c;
  c.grad_scale = step.grad_scale;
  c.beta1 = static_cast<float>(step.beta1);
  c.beta1_rest = static_cast<float>(1 - step.beta1);
  c.beta2 = static_cast<float>(step.beta2);
  c.beta2_rest = static_cast<float>(1 - step.beta2);
  c.eps = static_cast<float>(step.config->eps);
  return c;
}

double decay(const GroupStep& step) { return step.decays ? step.config->weight_decay : 0.0; }

double correction(const GroupStep& step, double beta) {
  return step.config->bias_correction ? one_minus_power(beta, step.step) : 1.0;
}

}  // namespace

kernels::UpdateConstants adam_constants(const GroupStep& step) {
  kernels::UpdateConstants c = with_betas(step);
  c.root_scale = static_cast<float>(1 / std::sqrt(correction(step, step.beta2)));
  c.step_size = static_cast<float>(step.lr / correction(step, step.beta1));
  if (step.config->decoupled) {
    c.decoupled_decay = static_cast<float>(step.lr * decay(step));
  } else {
    c.coupled_decay = static_cast<float>(decay(step));
  }
  return c;
}

kernels::UpdateConstants adagrad_constants(const GroupStep& step) {
  kernels::UpdateConstants c = with_betas(step);
  c.step_size = static_cast<float>(step.lr);
  c.coupled_decay = static_cast<float>(decay(step));
  return c;
}

kernels::UpdateConstants lion_constants(const GroupStep& step) {
  kernels::UpdateConstants c = with_betas(step);
  c.step_size = static_cast<float>(step.lr);
  c.decoupled_decay = static_cast<float>(step.lr * decay(step));
  return c;
}

kernels::UpdateConstants sgd_constants(const GroupStep& step) {
  kernels::UpdateConstants c = with_betas(step);
  // The first gradient fills the buffer as it is.
  c.beta1_rest = step.step == 1 ? 1.0f : static_cast<float>(1 - step.config->dampening);
  c.step_size = static_cast<float>(step.lr);
  c.coupled_decay = static_cast<float>(decay(step));
  c.variant = step.config->nesterov;
  return c;
}

kernels::UpdateConstants lamb_constants(const GroupStep& step) {
  kernels::UpdateConstants c = with_betas(step);
  c.coupled_decay = static_cast<float>(decay(step));
  c.variant = step.config->eps_inside_sqrt;
  return c;
}

double lamb_rate(const GroupStep& step) {
  return step.lr * std::sqrt(correction(step, step.beta2)) / correction(step, step.beta1);
}

double first_coefficient(const OptimizerConfig& config) {
  return config.type == OptimizerType::kSgd ? config.momentum : config.beta1;
}

}  // namespace ds::optim
