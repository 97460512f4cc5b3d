// Fused bias + GELU and its gradient. T is float, bfloat16 or float16;
// arithmetic is fp32.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

enum class GeluForm { kTanh, kErf };

// y[i, j] = gelu(x[i, j] + bias[j]) over [rows, columns].
template <class T>
struct BiasGelu {
  GeluForm form = GeluForm::kTanh;
  int64_t rows = 0, columns = 0;
  const T* x = nullptr;
  const T* bias = nullptr;  // may be null
  T* y = nullptr;           // may be x
};
template <class T>
void bias_gelu(const BiasGelu<T>& call, ThreadPool& pool);
template <class T>
void bias_gelu(const BiasGelu<T>& call, const GpuStream& on);

// How many pieces the rows are cut into when the bias gradient is wanted.
int64_t bias_gelu_chunks(int64_t rows, int64_t columns);

// dx = dy * gelu'(x + bias); db[j] += sum over i of dx[i, j] before its rounding to T.
template <class T>
struct BiasGeluBackward {
  GeluForm form = GeluForm::kTanh;
  int64_t rows = 0, columns = 0;
  const T* dy = nullptr;
  const T* x = nullptr;
  const T* bias = nullptr;    // may be null
  T* dx = nullptr;            // may be dy
  float* db = nullptr;        // may be null
  float* partials = nullptr;  // with db: bias_gelu_chunks(rows, columns) * columns numbers
};
template <class T>
void bias_gelu_backward(const BiasGeluBackward<T>& call, ThreadPool& pool);
template <class T>
void bias_gelu_backward(const BiasGeluBackward<T>& call, const GpuStream& on);

// ---- reference, scalar, double precision (bias_gelu_ref.cc) ----
double gelu_ref(double v, GeluForm form);
double gelu_derivative_ref(double v, GeluForm form);

}  // namespace ds::kernels
