// The double-precision reference of gemv.
#include "kernels/gemv/gemv.h"

namespace ds::kernels {

void gemv_ref(int64_t m, int64_t n, int64_t k, const double* x, const double* w, const double* bias,
              double* y) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias == nullptr ? 0 : bias[j];
      for (int64_t l = 0; l < k; ++l) sum += x[i * k + l] * w[j * k + l];
      y[i * n + j] = sum;
    }
  }
}

}  // namespace ds::kernels
