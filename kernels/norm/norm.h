// Layer and RMS normalisation of rows, with the residual addition before it, and their gradients.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/norm/gpu_chunks.h"
#include "kernels/reduce/reduce.h"

namespace ds::kernels {

// Statistics and gradients of gamma and beta: fp32, and double where the reference computes.
template <class T>
using NormSum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// s = x + residual rounded to T. Centred (layer normalisation):
// y = (s - mean) * rstd * gamma + beta with rstd = 1 / sqrt(variance + eps); else (RMS
// normalisation): y = s * rstd * gamma with rstd = 1 / sqrt(mean(s^2) + eps).
template <class T, bool kIsCentred>
struct Norm {
  using Type = T;
  static constexpr bool kCentred = kIsCentred;
  int64_t rows = 0, cols = 0;
  const T* x = nullptr;
  const T* residual = nullptr;  // may be null
  const T* gamma = nullptr;
  const T* beta = nullptr;  // if centred
  float eps = 0;
  T* y = nullptr;
  T* sum = nullptr;            // s; may be null or x when there is no residual
  NormSum<T>* mean = nullptr;  // if centred
  NormSum<T>* rstd = nullptr;
};
template <class T>
using LayerNorm = Norm<T, true>;
template <class T>
using RmsNorm = Norm<T, false>;

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dsum with g = dy * gamma and
// xhat = (s - mean) * rstd; RMS normalisation has neither mean nor mean(g). dgamma += sum of
// dy * xhat over rows, dbeta += sum of dy.
template <class T, bool kIsCentred>
struct NormBackward {
  using Type = T;
  static constexpr bool kCentred = kIsCentred;
  static constexpr int64_t kVectors = kIsCentred ? 2 : 1;  // whose gradients are sums over rows
  int64_t rows = 0, cols = 0;
  const T* dy = nullptr;
  const T* dsum = nullptr;  // may be null
  const T* sum = nullptr;   // s of the forward pass
  const T* gamma = nullptr;
  const NormSum<T>* mean = nullptr;  // if centred
  const NormSum<T>* rstd = nullptr;
  T* dx = nullptr;  // may be dy or dsum
  NormSum<T>* dgamma = nullptr;
  NormSum<T>* dbeta = nullptr;  // if centred
  float* partials = nullptr;    // norm_partials(call, on) numbers
};
template <class T>
using LayerNormBackward = NormBackward<T, true>;
template <class T>
using RmsNormBackward = NormBackward<T, false>;

// Of float, bfloat16 and float16. A row is read from memory once and then from cache: mean,
// variance around it, output.
template <class T, bool kCentred>
void norm_forward(const Norm<T, kCentred>& call, ThreadPool& pool);
template <class T, bool kCentred>
void norm_forward(const Norm<T, kCentred>& call, const GpuStream& on);

template <class T, bool kCentred>
int64_t norm_partials(const NormBackward<T, kCentred>& call, const ThreadPool&) {
  return call.kVectors * row_chunks(call.rows) * call.cols;
}
template <class T, bool kCentred>
int64_t norm_partials(const NormBackward<T, kCentred>& call, const GpuStream&) {
  return call.kVectors * gpu_norm_chunks(call.rows) * call.cols;
}
template <class T, bool kCentred>
void norm_backward(const NormBackward<T, kCentred>& call, ThreadPool& pool);
template <class T, bool kCentred>
void norm_backward(const NormBackward<T, kCentred>& call, const GpuStream& on);

// In double precision: `sum` is not rounded, and `partials` not used.
namespace reference {
void layer_norm(const LayerNorm<double>& call);
void layer_norm_backward(const LayerNormBackward<double>& call);
void rms_norm(const RmsNorm<double>& call);
void rms_norm_backward(const RmsNormBackward<double>& call);
}  // namespace reference

}  // namespace ds::kernels
