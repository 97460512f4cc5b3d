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

int64_t strided_offset(const Strided& shape, int64_t flat) {
  int64_t offset = 0;
  for (int i = shape.dims - 1; i >= 0; --i) {
    offset += flat % shape.sizes[i] * shape.strides[i];
    flat /= shape.sizes[i];
  }
  return offset;
}

}  // namespace ds::kernels::reference
