// Optimizers in plain double precision, written as their papers write them.
#include <algorithm>
#include <cmath>

#include "kernels/optimizer/update.h"

namespace ds::kernels::reference {

void adam(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m,
          double* v) {
  const double t = static_cast<double>(hyper.step);
  const double c1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, t) : 1;
  const double c2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, t) : 1;
  for (int64_t i = 0; i < n; ++i) {
    double g = grad[i] * hyper.grad_scale;
    if (!hyper.decoupled) g += hyper.weight_decay * p[i];
    m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * g;
    v[i] = hyper.beta2 * v[i] + (1 - hyper.beta2) * g * g;
    double update = m[i] / c1 / (std::sqrt(v[i] / c2) + hyper.eps);
    if (hyper.decoupled) update += hyper.weight_decay * p[i];
    p[i] -= hyper.lr * update;
  }
}

void adagrad(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* sum) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = grad[i] * hyper.grad_scale;
    const double h = g + hyper.weight_decay * p[i];
    sum[i] += h * h;
    p[i] -= hyper.lr * g / (std::sqrt(sum[i]) + hyper.eps);
  }
}

void lion(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = grad[i] * hyper.grad_scale;
    const double u = hyper.beta1 * m[i] + (1 - hyper.beta1) * g;
    const double sign = u > 0 ? 1 : u < 0 ? -1 : 0;
    p[i] = p[i] * (1 - hyper.lr * hyper.weight_decay) - hyper.lr * sign;
    m[i] = hyper.beta2 * m[i] + (1 - hyper.beta2) * g;
  }
}

void sgd(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* buffer) {
  const double momentum = hyper.beta1;
  for (int64_t i = 0; i < n; ++i) {
    const double g = grad[i] * hyper.grad_scale + hyper.weight_decay * p[i];
    double u = g;
    if (momentum != 0) {
      buffer[i] = hyper.step == 1 ? g : momentum * buffer[i] + (1 - hyper.dampening) * g;
      u = hyper.nesterov ? g + momentum * buffer[i] : buffer[i];
    }
    p[i] -= hyper.lr * u;
  }
}

double lamb(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m,
            double* v) {
  const double t = static_cast<double>(hyper.step);
  double weights = 0, updates = 0;
  const auto direction = [&](int64_t i) {
    const double root =
        hyper.eps_inside_sqrt ? std::sqrt(v[i] + hyper.eps) : std::sqrt(v[i]) + hyper.eps;
    return m[i] / root + hyper.weight_decay * p[i];
  };
  for (int64_t i = 0; i < n; ++i) {
    const double g = grad[i] * hyper.grad_scale;
    m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * g;
    v[i] = hyper.beta2 * v[i] + (1 - hyper.beta2) * g * g;
    weights += p[i] * p[i];
    updates += direction(i) * direction(i);
  }
  double ratio = 1;
  if (weights > 0 && updates > 0) {
    ratio = std::clamp(std::sqrt(weights / updates), hyper.min_coeff, hyper.max_coeff);
  }
  double rate = hyper.lr;
  if (hyper.bias_correction) {
    rate *= std::sqrt(1 - std::pow(hyper.beta2, t)) / (1 - std::pow(hyper.beta1, t));
  }
  for (int64_t i = 0; i < n; ++i) p[i] -= rate * ratio * direction(i);
  return ratio;
}

}  // namespace ds::kernels::reference
