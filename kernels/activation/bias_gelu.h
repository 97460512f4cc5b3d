// Fused bias + GELU and its gradient. T is float or bfloat16; arithmetic is fp32.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

enum class GeluForm { kTanh, kErf };

// y[i, j] = gelu(x[i, j] + bias[j]) over [rows, columns]; bias may be null, y may be x.
template <class T>
void bias_gelu(const T* x, const T* bias, GeluForm form, int64_t rows, int64_t columns, T* y,
               ThreadPool& pool);
template <class T>
void bias_gelu(const T* x, const T* bias, GeluForm form, int64_t rows, int64_t columns, T* y,
               const GpuStream& on);

// How many pieces the rows are cut into when the bias gradient is wanted.
int64_t bias_gelu_chunks(int64_t rows, int64_t columns);

// dx = dy * gelu'(x + bias); db[j] += sum over i of dx[i, j] before its rounding to T. db may be
// null; else `partials` holds bias_gelu_chunks(rows, columns) * columns floats. dx may be dy.
template <class T>
void bias_gelu_backward(const T* dy, const T* x, const T* bias, GeluForm form, int64_t rows,
                        int64_t columns, T* dx, float* db, float* partials, ThreadPool& pool);
template <class T>
void bias_gelu_backward(const T* dy, const T* x, const T* bias, GeluForm form, int64_t rows,
                        int64_t columns, T* dx, float* db, float* partials, const GpuStream& on);

// ---- reference, scalar, double precision (bias_gelu_ref.cc) ----
double gelu_ref(double v, GeluForm form);
double gelu_derivative_ref(double v, GeluForm form);

}  // namespace ds::kernels
