// What orthogonalisation does between its products: element by element on fp32 matrices.
#pragma once

#include <cstdint>

#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// y = a x + b y; y is not read when b is 0.
void combine(int64_t n, float a, const float* x, float b, float* y, ThreadPool& pool);
void combine(int64_t n, float a, const float* x, float b, float* y, const GpuStream& on);

// y /= sqrt(*squares) + eps, as a product with the reciprocal, which is worked out in double.
void divide_by_norm(int64_t n, const double* squares, double eps, float* y, ThreadPool& pool);
void divide_by_norm(int64_t n, const double* squares, double eps, float* y, const GpuStream& on);

// y[i, i] += value for a square matrix.
void add_to_diagonal(int64_t side, float value, float* y, ThreadPool& pool);
void add_to_diagonal(int64_t side, float value, float* y, const GpuStream& on);

}  // namespace ds::kernels
