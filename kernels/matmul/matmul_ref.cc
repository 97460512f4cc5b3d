// The scalar double-precision reference of the matrix product.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/matmul/matmul.h"

namespace ds::kernels {

void matmul_ref(int64_t m, int64_t n, int64_t k, const double* a, bool a_transposed,
                const double* b, bool b_transposed, const double* bias, bool accumulate, double* c,
                double* magnitude) {
  std::vector<double> row(static_cast<size_t>(n)), size(row.size());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const double before = accumulate ? c[i * n + j] : 0, shift = bias != nullptr ? bias[j] : 0;
      row[static_cast<size_t>(j)] = before + shift;
      size[static_cast<size_t>(j)] = std::abs(before) + std::abs(shift);
    }
    for (int64_t l = 0; l < k; ++l) {
      const double left = a_transposed ? a[l * m + i] : a[i * k + l];
      for (int64_t j = 0; j < n; ++j) {
        const double product = left * (b_transposed ? b[j * k + l] : b[l * n + j]);
        row[static_cast<size_t>(j)] += product;
        size[static_cast<size_t>(j)] += std::abs(product);
      }
    }
    std::copy(row.begin(), row.end(), c + i * n);
    if (magnitude != nullptr) std::copy(size.begin(), size.end(), magnitude + i * n);
  }
}

}  // namespace ds::kernels
