// Hyperparameters to what the update loops multiply by: in double, rounded once.
#include <algorithm>
#include <cmath>

#include "kernels/optimizer/update.h"

namespace ds::kernels {
namespace {

// 1 - beta^t without the cancellation of small t * (1 - beta).
double one_minus_power(double beta, int64_t t) {
  return beta == 0 ? 1.0 : -std::expm1(static_cast<double>(t) * std::log(beta));
}

double bias_correction(const UpdateHyper& hyper, double beta) {
  return hyper.bias_correction ? one_minus_power(beta, hyper.step) : 1.0;
}

}  // namespace

double nadam_momentum(double beta1, double momentum_decay, int64_t t) {
  return beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(t) * momentum_decay));
}

UpdateConstants update_constants(UpdateRule rule, const UpdateHyper& hyper) {
  UpdateConstants c;
  c.grad_scale = hyper.grad_scale;
  c.beta1 = static_cast<float>(hyper.beta1);
  c.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  c.beta2 = static_cast<float>(hyper.beta2);
  c.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
  c.eps = static_cast<float>(hyper.eps);
  c.step_size = static_cast<float>(hyper.lr);
  const double c1 = bias_correction(hyper, hyper.beta1);
  const double c2 = bias_correction(hyper, hyper.beta2);
  const auto coupled = static_cast<float>(hyper.weight_decay);
  const auto decoupled = static_cast<float>(hyper.lr * hyper.weight_decay);
  switch (rule) {
    case UpdateRule::kAdam:
    case UpdateRule::kAmsgrad:
      c.root_scale = static_cast<float>(1 / std::sqrt(c2));
      c.step_size = static_cast<float>(hyper.lr / c1);
      (hyper.decoupled ? c.decoupled_decay : c.coupled_decay) =
          hyper.decoupled ? decoupled : coupled;
      break;
    case UpdateRule::kLion:
      c.decoupled_decay = decoupled;
      break;
    case UpdateRule::kNadam: {
      const double now = nadam_momentum(hyper.beta1, hyper.momentum_decay, hyper.step);
      const double next = nadam_momentum(hyper.beta1, hyper.momentum_decay, hyper.step + 1);
      c.root_scale = static_cast<float>(1 / std::sqrt(one_minus_power(hyper.beta2, hyper.step)));
      c.step_size = static_cast<float>(hyper.lr * next / (1 - hyper.momentum_product * next));
      c.grad_step = static_cast<float>(hyper.lr * (1 - now) / (1 - hyper.momentum_product));
      (hyper.decoupled ? c.decoupled_decay : c.coupled_decay) =
          hyper.decoupled ? decoupled : coupled;
      break;
    }
    case UpdateRule::kAdagrad:
      c.step_size =
          static_cast<float>(hyper.lr / (1 + static_cast<double>(hyper.step - 1) * hyper.lr_decay));
      c.coupled_decay = coupled;
      break;
    case UpdateRule::kRmsprop:
    case UpdateRule::kRmspropMomentum:
    case UpdateRule::kRmspropCentered:
    case UpdateRule::kRmspropCenteredMomentum:
    case UpdateRule::kSgd:
      c.coupled_decay = coupled;
      break;
    case UpdateRule::kMomentum:
      c.coupled_decay = coupled;
      c.variant = hyper.nesterov;
      // The first gradient fills the buffer as it is; without momentum every one does.
      if (hyper.step > 1 && hyper.beta1 != 0) {
        c.one_minus_beta1 = static_cast<float>(1 - hyper.dampening);
      } else {
        c.one_minus_beta1 = 1;
      }
      break;
    case UpdateRule::kLambMoments:
    case UpdateRule::kLambApply:
      c.step_size = static_cast<float>(hyper.lr * std::sqrt(c2) / c1);
      c.coupled_decay = coupled;
      c.variant = hyper.eps_inside_sqrt;
      break;
    case UpdateRule::kMuonMomentum:
      break;
  }
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
