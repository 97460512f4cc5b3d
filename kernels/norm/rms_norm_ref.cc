// RMS normalisation and its gradient in plain double precision.
#include <cmath>

#include "kernels/norm/rms_norm.h"

namespace ds::kernels::reference {

void rms_norm(int64_t rows, int64_t cols, const double* x, const double* residual,
              const double* gamma, double eps, double* y, double* sum, double* rstd) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * cols;
    double squares = 0;
    for (int64_t j = 0; j < cols; ++j) {
      sum[at + j] = x[at + j] + (residual != nullptr ? residual[at + j] : 0.0);
      squares += sum[at + j] * sum[at + j];
    }
    rstd[row] = 1.0 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (int64_t j = 0; j < cols; ++j) y[at + j] = sum[at + j] * rstd[row] * gamma[j];
  }
}

void rms_norm_backward(int64_t rows, int64_t cols, const double* dy, const double* dsum,
                       const double* sum, const double* gamma, const double* rstd, double* dx,
                       double* dgamma) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * cols;
    double gx_mean = 0;
    for (int64_t j = 0; j < cols; ++j) {
      const double xhat = sum[at + j] * rstd[row];
      gx_mean += dy[at + j] * gamma[j] * xhat / static_cast<double>(cols);
      dgamma[j] += dy[at + j] * xhat;
    }
    for (int64_t j = 0; j < cols; ++j) {
      const double xhat = sum[at + j] * rstd[row];
      const double direct = dsum != nullptr ? dsum[at + j] : 0.0;
      dx[at + j] = rstd[row] * (dy[at + j] * gamma[j] - xhat * gx_mean) + direct;
    }
  }
}

}  // namespace ds::kernels::reference
