// Products of 8-bit integers with scales: C[m,n] = sa[i] sb[j] sum_k A[i,k] B[j,k] (+ bias[j]).
//
// Integer sums are exact, so every implementation and any number of threads give the same bits;
// only the scaling rounds. Meant for prompts: weights quantised once by output row, activations
// row by row as they come.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/float_type.h"

namespace ds::kernels {

// Both operands are dense along k. Values are in [-127, 127]; -128 is allowed.
struct Int8Matmul {
  int64_t m = 0, n = 0, k = 0;
  const int8_t* a = nullptr;  // [m, k], rows a_stride apart
  int64_t a_stride = 0;
  const float* a_scales = nullptr;  // [m]
  const int8_t* b = nullptr;        // [n, k], rows b_stride apart
  int64_t b_stride = 0;
  const float* b_scales = nullptr;  // [n]
  FloatType out = FloatType::kFloat32;
  const void* bias = nullptr;  // [n] of the type of C, or null
  void* c = nullptr;
  int64_t c_stride = 0;
};

// The implementations, best first; kAuto takes the first that this CPU runs. Tests choose one.
enum class Int8Path { kAuto, kAmx, kAvx512Vnni, kAvx2, kPortable };

// Longer k could overflow a 32-bit sum; refused with Error(kInvalidArgument).
inline constexpr int64_t kInt8LongestDepth = int64_t{1} << 16;

void int8_matmul(const Int8Matmul& problem, ThreadPool& pool, Int8Path path = Int8Path::kAuto);

bool int8_path_runs(Int8Path path);

// q[i, j] = round(x[i, j] / scales[i]) with scales[i] = max |x[i]| / 127, halves to even. A row of
// zeros, or below 1e-35, has scale 0; a row with a NaN or an infinity has scale NaN and codes 0, so
// that what is computed from it is NaN.
struct QuantizeRows {
  FloatType type = FloatType::kFloat32;
  const void* x = nullptr;  // [rows, columns], rows x_stride apart
  int64_t x_stride = 0;
  int64_t rows = 0, columns = 0;
  int8_t* q = nullptr;  // rows q_stride apart
  int64_t q_stride = 0;
  float* scales = nullptr;  // [rows]
};
void quantize_rows(const QuantizeRows& call, ThreadPool& pool);

}  // namespace ds::kernels
