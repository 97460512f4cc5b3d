// y = x w^T + bias for a few rows of x, which is what decoding a token asks of every weight: each
// weight is read once, in the order of memory, and the threads share the rows of w.
//
// Sums are fp32 in an order that depends on k alone: a row of x gives the same bits whatever other
// rows come with it, and for any number of threads. On the CPU each thread that calls keeps a
// scratch of m * k floats, which grows to the largest call and stays.
#pragma once

#include <cstdint>

#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/float_type.h"

namespace ds::kernels {

inline constexpr int64_t kMaxGemvRows = 16;

struct Gemv {
  FloatType type = FloatType::kFloat32;  // of x, w and bias
  FloatType out = FloatType::kFloat32;   // of y
  int64_t m = 0;                         // 0..kMaxGemvRows
  int64_t n = 0;
  int64_t k = 0;
  const void* x = nullptr;     // [m, k]
  const void* w = nullptr;     // [n, k]
  const void* bias = nullptr;  // [n] or null
  void* y = nullptr;           // [m, n]
};

void gemv(const Gemv& call, ThreadPool& pool);
void gemv(const Gemv& call, const GpuStream& on);

// The reference: the same sums in double. x [m, k], w [n, k], bias [n] or null, y [m, n].
void gemv_ref(int64_t m, int64_t n, int64_t k, const double* x, const double* w, const double* bias,
              double* y);

}  // namespace ds::kernels
