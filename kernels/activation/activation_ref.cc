// Activation functions in plain double precision.
#include <cmath>

#include "kernels/activation/activation.h"
#include "kernels/activation/bias_gelu.h"

namespace ds::kernels::reference {

double activation(double v, ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kRelu:
      return v > 0 ? v : 0;
    case ActivationKind::kSilu:
      return v / (1 + std::exp(-v));
    case ActivationKind::kGeluTanh:
      return gelu_ref(v, GeluForm::kTanh);
    case ActivationKind::kGeluErf:
      return gelu_ref(v, GeluForm::kErf);
    case ActivationKind::kTanh:
      return std::tanh(v);
  }
  return v;
}

double activation_derivative(double v, ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kRelu:
      return v > 0 ? 1 : 0;
    case ActivationKind::kSilu: {
      const double s = 1 / (1 + std::exp(-v));
      return s + v * s * (1 / (1 + std::exp(v)));
    }
    case ActivationKind::kGeluTanh:
      return gelu_derivative_ref(v, GeluForm::kTanh);
    case ActivationKind::kGeluErf:
      return gelu_derivative_ref(v, GeluForm::kErf);
    case ActivationKind::kTanh: {
      const double c = std::cosh(v);
      return 1 / (c * c);
    }
  }
  return 1;
}

}  // namespace ds::kernels::reference
