// The reductions in plain double precision.
#include <cmath>
#include <limits>

#include "kernels/reduce/reduce.h"

namespace ds::kernels::reference {

double sum(const double* x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += x[i];
  return total;
}

double sum_squares(const double* x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += x[i] * x[i];
  return total;
}

double max_abs(const double* x, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return std::numeric_limits<double>::quiet_NaN();
    most = std::fmax(most, std::fabs(x[i]));
  }
  return most;
}

int64_t first_non_finite(const double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return -1;
}

void add_column_sums(const double* x, int64_t rows, int64_t cols, double* y) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) y[col] += x[row * cols + col];
  }
}

}  // namespace ds::kernels::reference
