// Optimizers in plain double precision, written as their papers write them.
#include <algorithm>
#include <cmath>

#include "kernels/optimizer/update.h"

namespace ds::kernels::reference {

void adam(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m, double* v,
          double* most) {
  const double t = static_cast<double>(hyper.step);
  const double c1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, t) : 1;
  const double c2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, t) : 1;
  for (int64_t i = 0; i < n; ++i) {
    double g = grad[i] * hyper.grad_scale;
    if (!hyper.decoupled) g += hyper.weight_decay * p[i];
    m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * g;
    v[i] = hyper.beta2 * v[i] + (1 - hyper.beta2) * g * g;
    if (most != nullptr) most[i] = std::max(most[i], v[i]);
    const double square = most != nullptr ? most[i] : v[i];
    double update = m[i] / c1 / (std::sqrt(square / c2) + hyper.eps);
    if (hyper.decoupled) update += hyper.weight_decay * p[i];
    p[i] -= hyper.lr * update;
  }
}

void nadam(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* m,
           double* v) {
  double product = 1;
  const auto momentum = [&](int64_t t) {
    return hyper.beta1 * (1 - std::pow(0.96, static_cast<double>(t) * hyper.momentum_decay) / 2);
  };
  for (int64_t t = 1; t <= hyper.step; ++t) product *= momentum(t);
  const double now = momentum(hyper.step), next = momentum(hyper.step + 1);
  const double c2 = 1 - std::pow(hyper.beta2, static_cast<double>(hyper.step));
  for (int64_t i = 0; i < n; ++i) {
    double g = grad[i] * hyper.grad_scale;
    if (hyper.decoupled) {
      p[i] *= 1 - hyper.lr * hyper.weight_decay;
    } else {
      g += hyper.weight_decay * p[i];
    }
    m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * g;
    v[i] = hyper.beta2 * v[i] + (1 - hyper.beta2) * g * g;
    const double root = std::sqrt(v[i] / c2) + hyper.eps;
    p[i] -= hyper.lr * (1 - now) / (1 - product) * g / root;
    p[i] -= hyper.lr * next / (1 - product * next) * m[i] / root;
  }
}

void rmsprop(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* square,
             double* buffer, double* mean) {
  const double alpha = hyper.beta2;
  for (int64_t i = 0; i < n; ++i) {
    const double g = grad[i] * hyper.grad_scale + hyper.weight_decay * p[i];
    square[i] = alpha * square[i] + (1 - alpha) * g * g;
    double variance = square[i];
    if (mean != nullptr) {
      mean[i] = alpha * mean[i] + (1 - alpha) * g;
      variance -= mean[i] * mean[i];
    }
    double update = g / (std::sqrt(std::max(0.0, variance)) + hyper.eps);
    if (buffer != nullptr) update = buffer[i] = hyper.beta1 * buffer[i] + update;
    p[i] -= hyper.lr * update;
  }
}

void adagrad(const UpdateHyper& hyper, int64_t n, double* p, const double* grad, double* sum) {
  const double rate = hyper.lr / (1 + static_cast<double>(hyper.step - 1) * hyper.lr_decay);
  for (int64_t i = 0; i < n; ++i) {
    const double g = grad[i] * hyper.grad_scale + hyper.weight_decay * p[i];
    sum[i] += g * g;
    p[i] -= rate * g / (std::sqrt(sum[i]) + hyper.eps);
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
