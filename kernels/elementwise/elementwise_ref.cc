// The element-wise operators in plain double precision.
#include "kernels/elementwise/elementwise.h"

namespace ds::kernels::reference {

void add(const double* a, const double* b, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void scale(const double* x, double factor, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
}

void accumulate(const double* x, double factor, int64_t n, double* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += factor * x[i];
}

}  // namespace ds::kernels::reference
