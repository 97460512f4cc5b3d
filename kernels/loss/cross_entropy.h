// Softmax cross entropy over rows of logits. T is float, bfloat16 or float16; arithmetic is fp32,
// sums of exponentials are gathered in double.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// What gradients are multiplied by: a number or, on a GPU, where it lies in its memory when the
// kernel runs.
struct GradientScale {
  GradientScale(float value) : number(value) {}  // NOLINT: a number is one
  GradientScale(const float* where) : number(1), memory(where) {}
  float number;
  const float* memory = nullptr;
};

// A row with a negative label is ignored: loss and lse are 0, the gradient is 0. Other labels are
// below `valid`; columns from `valid` on (rows are `columns` long) count as -inf.
template <class T>
struct CrossEntropy {
  int64_t rows = 0, columns = 0, valid = 0;
  const T* logits = nullptr;
  const int32_t* labels = nullptr;
  float* loss = nullptr;
  float* lse = nullptr;
};
template <class T>
void cross_entropy(const CrossEntropy<T>& call, ThreadPool& pool);
template <class T>
void cross_entropy(const CrossEntropy<T>& call, const GpuStream& on);

// dlogits = scale * (softmax - onehot); may be logits.
template <class T>
struct CrossEntropyBackward {
  int64_t rows = 0, columns = 0, valid = 0;
  const T* logits = nullptr;
  const int32_t* labels = nullptr;
  const float* lse = nullptr;
  float scale = 1;
  T* dlogits = nullptr;
};
template <class T>
void cross_entropy_backward(const CrossEntropyBackward<T>& call, ThreadPool& pool);
template <class T>
void cross_entropy_backward(const CrossEntropyBackward<T>& call, const GpuStream& on);

// Both while a row is in the cache: loss as above, and logits become scale * (softmax - onehot).
template <class T>
struct CrossEntropyFused {
  int64_t rows = 0, columns = 0, valid = 0;
  T* logits = nullptr;
  const int32_t* labels = nullptr;
  GradientScale scale = 1.0f;
  float* loss = nullptr;
};
template <class T>
void cross_entropy_fused(const CrossEntropyFused<T>& call, ThreadPool& pool);
template <class T>
void cross_entropy_fused(const CrossEntropyFused<T>& call, const GpuStream& on);

// ---- reference, scalar, double precision (cross_entropy_ref.cc): one row ----
struct CrossEntropyRow {
  double loss = 0;
  double lse = 0;
};
CrossEntropyRow cross_entropy_ref(const double* logits, int32_t label, int64_t valid);
void cross_entropy_backward_ref(const double* logits, int32_t label, int64_t columns, int64_t valid,
                                double scale, double* dlogits);

}  // namespace ds::kernels
