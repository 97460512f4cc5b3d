// Layer normalisation of rows, with the residual addition before it, and its gradient.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/norm/gpu_chunks.h"
#include "kernels/reduce/reduce.h"

namespace ds::kernels {

// s = x + residual rounded to T; y = (s - mean) * rstd * gamma + beta.
template <class T>
struct LayerNorm {
  using Type = T;
  static constexpr bool kCentred = true;
  int64_t rows = 0, cols = 0;
  const T* x = nullptr;
  const T* residual = nullptr;  // may be null
  const T* gamma = nullptr;
  const T* beta = nullptr;
  float eps = 0;
  T* y = nullptr;
  T* sum = nullptr;  // s; may be null or x when there is no residual
  float* mean = nullptr;
  float* rstd = nullptr;
};

// A row is read from memory once and then twice from cache: mean, variance around it, output.
void layer_norm(const LayerNorm<float>& call, ThreadPool& pool);
void layer_norm(const LayerNorm<bfloat16>& call, ThreadPool& pool);
void layer_norm(const LayerNorm<float16>& call, ThreadPool& pool);
void layer_norm(const LayerNorm<float>& call, const GpuStream& on);
void layer_norm(const LayerNorm<bfloat16>& call, const GpuStream& on);
void layer_norm(const LayerNorm<float16>& call, const GpuStream& on);

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dsum with g = dy * gamma;
// dgamma += sum of dy * xhat over rows, dbeta += sum of dy.
template <class T>
struct LayerNormBackward {
  using Type = T;
  static constexpr bool kCentred = true;
  int64_t rows = 0, cols = 0;
  const T* dy = nullptr;
  const T* dsum = nullptr;  // may be null
  const T* sum = nullptr;   // s of the forward pass
  const T* gamma = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  T* dx = nullptr;  // may be dy or dsum
  float* dgamma = nullptr;
  float* dbeta = nullptr;
  float* partials = nullptr;  // layer_norm_partials(rows, cols, on) numbers
};

inline int64_t layer_norm_partials(int64_t rows, int64_t cols, const ThreadPool&) {
  return 2 * row_chunks(rows) * cols;
}
inline int64_t layer_norm_partials(int64_t rows, int64_t cols, const GpuStream&) {
  return 2 * gpu_norm_chunks(rows) * cols;
}
void layer_norm_backward(const LayerNormBackward<float>& call, ThreadPool& pool);
void layer_norm_backward(const LayerNormBackward<bfloat16>& call, ThreadPool& pool);
void layer_norm_backward(const LayerNormBackward<float16>& call, ThreadPool& pool);
void layer_norm_backward(const LayerNormBackward<float>& call, const GpuStream& on);
void layer_norm_backward(const LayerNormBackward<bfloat16>& call, const GpuStream& on);
void layer_norm_backward(const LayerNormBackward<float16>& call, const GpuStream& on);

namespace reference {
// `sum`, `mean` and `rstd` are outputs; `sum` is not rounded.
void layer_norm(int64_t rows, int64_t cols, const double* x, const double* residual,
                const double* gamma, const double* beta, double eps, double* y, double* sum,
                double* mean, double* rstd);
void layer_norm_backward(int64_t rows, int64_t cols, const double* dy, const double* dsum,
                         const double* sum, const double* gamma, const double* mean,
                         const double* rstd, double* dx, double* dgamma, double* dbeta);
}  // namespace reference

}  // namespace ds::kernels
