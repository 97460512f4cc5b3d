// The double-precision reference of GELU. Tanh form: 0.5 v (1 + tanh(sqrt(2/pi) (v + 0.044715
// v^3))); erf form: v Phi(v).
#include <cmath>
#include <numbers>

#include "kernels/activation/bias_gelu.h"

namespace ds::kernels {
namespace {
const double kSlope = std::sqrt(2.0 / std::numbers::pi);
constexpr double kCubic = 0.044715;
}  // namespace

double gelu_ref(double v, GeluForm form) {
  if (form == GeluForm::kErf) return 0.5 * v * std::erfc(-v / std::numbers::sqrt2);
  return 0.5 * v * (1 + std::tanh(kSlope * (v + kCubic * v * v * v)));
}

double gelu_derivative_ref(double v, GeluForm form) {
  if (form == GeluForm::kErf) {
    const double density = std::exp(-0.5 * v * v) / std::sqrt(2 * std::numbers::pi);
    return 0.5 * std::erfc(-v / std::numbers::sqrt2) + v * density;
  }
  const double t = std::tanh(kSlope * (v + kCubic * v * v * v));
  return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * kSlope * (1 + 3 * kCubic * v * v);
}

}  // namespace ds::kernels
