// The scalar double-precision reference of the matrix product.
#include <cmath>

#include "kernels/matmul/matmul.h"

namespace ds::kernels {

void matmul_ref(int64_t m, int64_t n, int64_t k, const double* a, bool a_transposed,
                const double* b, bool b_transposed, const double* bias, bool accumulate, double* c,
                double* magnitude) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const double before = accumulate ? c[i * n + j] : 0;
      double sum = before + (bias != nullptr ? bias[j] : 0);
      double size = std::abs(before) + (bias != nullptr ? std::abs(bias[j]) : 0);
      for (int64_t l = 0; l < k; ++l) {
        const double product = (a_transposed ? a[l * m + i] : a[i * k + l]) *
                               (b_transposed ? b[j * k + l] : b[l * n + j]);
        sum += product;
        size += std::abs(product);
      }
      c[i * n + j] = sum;
      if (magnitude != nullptr) magnitude[i * n + j] = size;
    }
  }
}

}  // namespace ds::kernels
