// Hyperparameters to what the update loops multiply by: in double, rounded once.
#include <algorithm>
#include <cmath>

#include "kernels/optimizer/update.h"

namespace ds::kernels {

double one_minus_power(double beta, int64_t t) {
  return beta == 0 ? 1.0 : -std::expm1(static_cast<double>(t) * std::log(beta));
}

double bias_correction(const UpdateHyper& hyper, double beta) {
  return hyper.bias_correction ? one_minus_power(beta, hyper.step) : 1.0;
}

double nadam_momentum(double beta1, double momentum_decay, int64_t t) {
  return beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(t) * momentum_decay));
}

void set_decay(const UpdateHyper& hyper, bool decoupled, UpdateConstants& c) {
  if (decoupled) {
    c.decoupled_decay = static_cast<float>(hyper.lr * hyper.weight_decay);
  } else {
    c.coupled_decay = static_cast<float>(hyper.weight_decay);
  }
}

UpdateConstants common_constants(const UpdateHyper& hyper) {
  UpdateConstants c;
  c.grad_scale = hyper.grad_scale;
  c.beta1 = static_cast<float>(hyper.beta1);
  c.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  c.beta2 = static_cast<float>(hyper.beta2);
  c.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
  c.eps = static_cast<float>(hyper.eps);
  c.step_size = static_cast<float>(hyper.lr);
  return c;
}

LambConstants::LambConstants(const UpdateHyper& hyper)
    : common_(update_constants(UpdateRule::kLambApply, hyper)),
      rate_(hyper.lr),
      root_(std::sqrt(bias_correction(hyper, hyper.beta2))),
      first_(bias_correction(hyper, hyper.beta1)) {}

double lamb_ratio(const UpdateHyper& hyper, double weight_squares, double update_squares) {
  if (!(weight_squares > 0 && update_squares > 0)) return 1;
  return std::clamp(std::sqrt(weight_squares / update_squares), hyper.min_coeff, hyper.max_coeff);
}

}  // namespace ds::kernels
