// Root-mean-square normalisation of rows, with the residual addition before it, and its gradient.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/norm/gpu_chunks.h"
#include "kernels/reduce/reduce.h"

namespace ds::kernels {

// s = x + residual rounded to T; y = s * rstd * gamma with rstd = 1 / sqrt(mean(s^2) + eps).
template <class T>
struct RmsNorm {
  using Type = T;
  static constexpr bool kCentred = false;
  int64_t rows = 0, cols = 0;
  const T* x = nullptr;
  const T* residual = nullptr;  // may be null
  const T* gamma = nullptr;
  float eps = 0;
  T* y = nullptr;
  T* sum = nullptr;  // s; may be null or x when there is no residual
  float* rstd = nullptr;
};

void rms_norm(const RmsNorm<float>& call, ThreadPool& pool);
void rms_norm(const RmsNorm<bfloat16>& call, ThreadPool& pool);
void rms_norm(const RmsNorm<float16>& call, ThreadPool& pool);
void rms_norm(const RmsNorm<float>& call, const GpuStream& on);
void rms_norm(const RmsNorm<bfloat16>& call, const GpuStream& on);
void rms_norm(const RmsNorm<float16>& call, const GpuStream& on);

// dx = rstd * (g - xhat * mean(g * xhat)) + dsum with g = dy * gamma and xhat = s * rstd;
// dgamma += sum of dy * xhat over rows.
template <class T>
struct RmsNormBackward {
  using Type = T;
  static constexpr bool kCentred = false;
  int64_t rows = 0, cols = 0;
  const T* dy = nullptr;
  const T* dsum = nullptr;  // may be null
  const T* sum = nullptr;   // s of the forward pass
  const T* gamma = nullptr;
  const float* rstd = nullptr;
  T* dx = nullptr;  // may be dy or dsum
  float* dgamma = nullptr;
  float* partials = nullptr;  // rms_norm_partials(rows, cols, on) numbers
};

inline int64_t rms_norm_partials(int64_t rows, int64_t cols, const ThreadPool&) {
  return row_chunks(rows) * cols;
}
inline int64_t rms_norm_partials(int64_t rows, int64_t cols, const GpuStream&) {
  return gpu_norm_chunks(rows) * cols;
}
void rms_norm_backward(const RmsNormBackward<float>& call, ThreadPool& pool);
void rms_norm_backward(const RmsNormBackward<bfloat16>& call, ThreadPool& pool);
void rms_norm_backward(const RmsNormBackward<float16>& call, ThreadPool& pool);
void rms_norm_backward(const RmsNormBackward<float>& call, const GpuStream& on);
void rms_norm_backward(const RmsNormBackward<bfloat16>& call, const GpuStream& on);
void rms_norm_backward(const RmsNormBackward<float16>& call, const GpuStream& on);

namespace reference {
// `sum` and `rstd` are outputs; `sum` is not rounded.
void rms_norm(int64_t rows, int64_t cols, const double* x, const double* residual,
              const double* gamma, double eps, double* y, double* sum, double* rstd);
void rms_norm_backward(int64_t rows, int64_t cols, const double* dy, const double* dsum,
                       const double* sum, const double* gamma, const double* rstd, double* dx,
                       double* dgamma);
}  // namespace reference

}  // namespace ds::kernels
