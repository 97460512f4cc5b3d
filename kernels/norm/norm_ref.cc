// Layer and RMS normalisation and their gradients in plain double precision.
#include <cmath>

#include "kernels/norm/norm.h"

namespace ds::kernels::reference {

void layer_norm(const LayerNorm<double>& call) {
  const double n = static_cast<double>(call.cols);
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t at = row * call.cols;
    double total = 0;
    for (int64_t j = 0; j < call.cols; ++j) {
      call.sum[at + j] = call.x[at + j] + (call.residual != nullptr ? call.residual[at + j] : 0.0);
      total += call.sum[at + j];
    }
    const double mean = total / n;
    double variance = 0;
    for (int64_t j = 0; j < call.cols; ++j) {
      variance += (call.sum[at + j] - mean) * (call.sum[at + j] - mean);
    }
    const double rstd = 1.0 / std::sqrt(variance / n + static_cast<double>(call.eps));
    for (int64_t j = 0; j < call.cols; ++j) {
      call.y[at + j] = (call.sum[at + j] - mean) * rstd * call.gamma[j] + call.beta[j];
    }
    call.mean[row] = mean;
    call.rstd[row] = rstd;
  }
}

void layer_norm_backward(const LayerNormBackward<double>& call) {
  const double n = static_cast<double>(call.cols);
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t at = row * call.cols;
    const double mean = call.mean[row], rstd = call.rstd[row];
    double g_mean = 0, gx_mean = 0;
    for (int64_t j = 0; j < call.cols; ++j) {
      const double xhat = (call.sum[at + j] - mean) * rstd;
      const double g = call.dy[at + j] * call.gamma[j];
      g_mean += g / n;
      gx_mean += g * xhat / n;
      call.dgamma[j] += call.dy[at + j] * xhat;
      call.dbeta[j] += call.dy[at + j];
    }
    for (int64_t j = 0; j < call.cols; ++j) {
      const double xhat = (call.sum[at + j] - mean) * rstd;
      const double direct = call.dsum != nullptr ? call.dsum[at + j] : 0.0;
      const double g = call.dy[at + j] * call.gamma[j];
      call.dx[at + j] = rstd * (g - g_mean - xhat * gx_mean) + direct;
    }
  }
}

void rms_norm(const RmsNorm<double>& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t at = row * call.cols;
    double squares = 0;
    for (int64_t j = 0; j < call.cols; ++j) {
      call.sum[at + j] = call.x[at + j] + (call.residual != nullptr ? call.residual[at + j] : 0.0);
      squares += call.sum[at + j] * call.sum[at + j];
    }
    const double mean_square = squares / static_cast<double>(call.cols);
    call.rstd[row] = 1.0 / std::sqrt(mean_square + static_cast<double>(call.eps));
    for (int64_t j = 0; j < call.cols; ++j) {
      call.y[at + j] = call.sum[at + j] * call.rstd[row] * call.gamma[j];
    }
  }
}

void rms_norm_backward(const RmsNormBackward<double>& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t at = row * call.cols;
    const double rstd = call.rstd[row];
    double gx_mean = 0;
    for (int64_t j = 0; j < call.cols; ++j) {
      const double xhat = call.sum[at + j] * rstd;
      gx_mean += call.dy[at + j] * call.gamma[j] * xhat / static_cast<double>(call.cols);
      call.dgamma[j] += call.dy[at + j] * xhat;
    }
    for (int64_t j = 0; j < call.cols; ++j) {
      const double xhat = call.sum[at + j] * rstd;
      const double direct = call.dsum != nullptr ? call.dsum[at + j] : 0.0;
      const double g = call.dy[at + j] * call.gamma[j];
      call.dx[at + j] = rstd * (g - xhat * gx_mean) + direct;
    }
  }
}

}  // namespace ds::kernels::reference
