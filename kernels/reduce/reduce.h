// Reductions of a flat array and column sums of a matrix, cut by problem size alone and combined in
// chunk order: the same bits for any thread count.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bfloat16.h"
#include "base/exact_sum.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// Partial results that a reduction of n elements needs as scratch.
inline constexpr int64_t kReduceGrain = int64_t{1} << 16;
inline int64_t reduce_chunks(int64_t n) { return (n + kReduceGrain - 1) / kReduceGrain; }

// Sums in double precision.
double sum(const float* x, int64_t n, double* partials, ThreadPool& pool);
double sum(const bfloat16* x, int64_t n, double* partials, ThreadPool& pool);
double sum(const float16* x, int64_t n, double* partials, ThreadPool& pool);
double sum_squares(const float* x, int64_t n, double* partials, ThreadPool& pool);
double sum_squares(const bfloat16* x, int64_t n, double* partials, ThreadPool& pool);
double sum_squares(const float16* x, int64_t n, double* partials, ThreadPool& pool);
// Squares, summed in double within blocks of kExactBlock elements and exactly beyond: arrays that
// are cut at multiples of that have the same sum however they are cut. One partial per chunk.
// Within a block, the last one filled up with zeros, a_j = (x_j^2 + x_8+j^2) + (x_16+j^2 +
// x_24+j^2), b_j = a_j + a_4+j, and the sum is (b_0 + b_2) + (b_1 + b_3): on every processor.
inline constexpr int64_t kExactBlock = 32;
ExactSum exact_squares(const float* x, int64_t n, ExactSum* partials, ThreadPool& pool);
ExactSum exact_squares(const bfloat16* x, int64_t n, ExactSum* partials, ThreadPool& pool);
ExactSum exact_squares(const float16* x, int64_t n, ExactSum* partials, ThreadPool& pool);
// NaN if any element is NaN; 0 for no elements.
double max_abs(const float* x, int64_t n, double* partials, ThreadPool& pool);
double max_abs(const bfloat16* x, int64_t n, double* partials, ThreadPool& pool);
double max_abs(const float16* x, int64_t n, double* partials, ThreadPool& pool);
// Index of the first NaN or infinity, -1 if there is none.
int64_t first_non_finite(const float* x, int64_t n, int64_t* partials, ThreadPool& pool);
int64_t first_non_finite(const bfloat16* x, int64_t n, int64_t* partials, ThreadPool& pool);
int64_t first_non_finite(const float16* x, int64_t n, int64_t* partials, ThreadPool& pool);

// How rows are cut where every chunk makes its own partial sums of all columns.
inline int64_t row_chunk_size(int64_t rows) {
  constexpr int64_t kLeast = 64, kMostChunks = 128;
  const int64_t size = (rows + kMostChunks - 1) / kMostChunks;
  return size < kLeast ? kLeast : size;
}
inline int64_t row_chunks(int64_t rows) {
  const int64_t size = row_chunk_size(rows);
  return (rows + size - 1) / size;
}

// y[cols] += sum over rows of x, which lie `stride` elements apart. `partials` holds
// row_chunks(rows) * cols numbers.
void add_column_sums(const float* x, int64_t rows, int64_t cols, int64_t stride, float* y,
                     float* partials, ThreadPool& pool);
void add_column_sums(const bfloat16* x, int64_t rows, int64_t cols, int64_t stride, float* y,
                     float* partials, ThreadPool& pool);
void add_column_sums(const float16* x, int64_t rows, int64_t cols, int64_t stride, float* y,
                     float* partials, ThreadPool& pool);

// y[cols] += partials[0] + partials[1] + ..., chunk by chunk in order.
void add_partial_sums(const float* partials, int64_t chunks, int64_t cols, float* y,
                      ThreadPool& pool);

// ---- results that stay where the array is ----
//
// *out is what the functions above return; of exact sums, the ExactSum::kWords words with carries
// done. On a GPU nothing waits. As many partials as above: doubles, and for exact sums the bytes of
// as many ExactSum.
template <class T>
void sum(const T* x, int64_t n, double* partials, double* out, ThreadPool& pool) {
  *out = sum(x, n, partials, pool);
}
template <class T>
void sum_squares(const T* x, int64_t n, double* partials, double* out, ThreadPool& pool) {
  *out = sum_squares(x, n, partials, pool);
}
template <class T>
void max_abs(const T* x, int64_t n, double* partials, double* out, ThreadPool& pool) {
  *out = max_abs(x, n, partials, pool);
}
template <class T>
void first_non_finite(const T* x, int64_t n, int64_t* partials, int64_t* out, ThreadPool& pool) {
  *out = first_non_finite(x, n, partials, pool);
}
template <class T>
void exact_squares(const T* x, int64_t n, int64_t* partials, int64_t* out, ThreadPool& pool) {
  const ExactSum total = exact_squares(x, n, reinterpret_cast<ExactSum*>(partials), pool);
  std::copy_n(total.words().data(), ExactSum::kWords, out);
}
template <class T>
void sum(const T* x, int64_t n, double* partials, double* out, const GpuStream& on);
template <class T>
void sum_squares(const T* x, int64_t n, double* partials, double* out, const GpuStream& on);
template <class T>
void max_abs(const T* x, int64_t n, double* partials, double* out, const GpuStream& on);
template <class T>
void first_non_finite(const T* x, int64_t n, int64_t* partials, int64_t* out, const GpuStream& on);
template <class T>
void exact_squares(const T* x, int64_t n, int64_t* partials, int64_t* out, const GpuStream& on);
template <class T>
void add_column_sums(const T* x, int64_t rows, int64_t cols, int64_t stride, float* y,
                     float* partials, const GpuStream& on);
void add_partial_sums(const float* partials, int64_t chunks, int64_t cols, float* y,
                      const GpuStream& on);

namespace reference {
double sum(const double* x, int64_t n);
double sum_squares(const double* x, int64_t n);
double max_abs(const double* x, int64_t n);
int64_t first_non_finite(const double* x, int64_t n);
void add_column_sums(const double* x, int64_t rows, int64_t cols, double* y);
}  // namespace reference

}  // namespace ds::kernels
