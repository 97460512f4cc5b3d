// The reference of the operator of docs/add-an-operator.md, step 2.
#include <algorithm>

#include "kernels/activation/squared_relu.h"

namespace ds::kernels::reference {

void squared_relu(const double* x, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::max(x[i], 0.0) * std::max(x[i], 0.0);
}

void squared_relu_backward(const double* x, const double* dy, int64_t n, double* dx) {
  for (int64_t i = 0; i < n; ++i) dx[i] = 2 * std::max(x[i], 0.0) * dy[i];
}

}  // namespace ds::kernels::reference
