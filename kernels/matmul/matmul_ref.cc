// The scalar double-precision reference of the matrix product.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/matmul/matmul.h"
#include "kernels/reference_sums.h"

namespace ds::kernels {

void matmul_ref(const MatmulReference& call) {
  const auto [m, n, k] = std::array{call.m, call.n, call.k};
  const double *const a = call.a, *b = call.b, *const bias = call.bias;
  std::vector<double> rows;  // of b, where it lies transposed
  if (call.b_transposed) {
    rows.resize(static_cast<size_t>(k * n));
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) rows[static_cast<size_t>(l * n + j)] = b[j * k + l];
    }
    b = rows.data();
  }
  std::vector<double> magnitudes;  // of b
  if (call.magnitude != nullptr) {
    magnitudes.assign(b, b + k * n);
    for (double& value : magnitudes) value = std::abs(value);
  }
  std::vector<double> row(static_cast<size_t>(n)), size(row.size());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const double before = call.accumulate ? call.c[i * n + j] : 0;
      const double shift = bias != nullptr ? bias[j] : 0;
      row[static_cast<size_t>(j)] = before + shift;
      size[static_cast<size_t>(j)] = std::abs(before) + std::abs(shift);
    }
    for (int64_t l = 0; l < k; ++l) {
      const double left = call.a_transposed ? a[l * m + i] : a[i * k + l];
      reference_add(row.data(), left, b + l * n, n);
      if (call.magnitude == nullptr) continue;
      reference_add(size.data(), std::abs(left), magnitudes.data() + l * n, n);
    }
    std::copy(row.begin(), row.end(), call.c + i * n);
    if (call.magnitude != nullptr) std::copy(size.begin(), size.end(), call.magnitude + i * n);
  }
}

}  // namespace ds::kernels
