// Adam in plain double precision, written as the papers write it.
#include <cmath>

#include "kernels/optimizer/adam.h"

namespace ds::kernels::reference {

void adam(const AdamHyper& hyper, int64_t n, double* p, const double* grad, double* m, double* v) {
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

}  // namespace ds::kernels::reference
