// Layer and RMS normalisation and their gradients in plain double precision.
#include <cmath>

#include "kernels/norm/norm.h"

namespace ds::kernels::reference {

void layer_norm(int64_t rows, int64_t cols, const double* x, const double* residual,
                const double* gamma, const double* beta, double eps, double* y, double* sum,
                double* mean, double* rstd) {
  const double n = static_cast<double>(cols);
  for (int64_t row = 0; row < rows; ++row) {
    double* s = sum + row * cols;
    double total = 0;
    for (int64_t j = 0; j < cols; ++j) {
      s[j] = x[row * cols + j] + (residual != nullptr ? residual[row * cols + j] : 0.0);
      total += s[j];
    }
    const double m = total / n;
    double variance = 0;
    for (int64_t j = 0; j < cols; ++j) variance += (s[j] - m) * (s[j] - m);
    const double r = 1.0 / std::sqrt(variance / n + eps);
    for (int64_t j = 0; j < cols; ++j) y[row * cols + j] = (s[j] - m) * r * gamma[j] + beta[j];
    mean[row] = m;
    rstd[row] = r;
  }
}

void layer_norm_backward(int64_t rows, int64_t cols, const double* dy, const double* dsum,
                         const double* sum, const double* gamma, const double* mean,
                         const double* rstd, double* dx, double* dgamma, double* dbeta) {
  const double n = static_cast<double>(cols);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * cols;
    double g_mean = 0, gx_mean = 0;
    for (int64_t j = 0; j < cols; ++j) {
      const double xhat = (sum[at + j] - mean[row]) * rstd[row];
      const double g = dy[at + j] * gamma[j];
      g_mean += g / n;
      gx_mean += g * xhat / n;
      dgamma[j] += dy[at + j] * xhat;
      dbeta[j] += dy[at + j];
    }
    for (int64_t j = 0; j < cols; ++j) {
      const double xhat = (sum[at + j] - mean[row]) * rstd[row];
      const double direct = dsum != nullptr ? dsum[at + j] : 0.0;
      dx[at + j] = rstd[row] * (dy[at + j] * gamma[j] - g_mean - xhat * gx_mean) + direct;
    }
  }
}

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
