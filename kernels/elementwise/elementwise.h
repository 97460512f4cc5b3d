// Addition, scaling, filling, conversion and accumulation, element by element.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/thread_pool.h"

namespace ds::kernels {

// y may be a or b.
void add(const float* a, const float* b, int64_t n, float* y, ThreadPool& pool);
void add(const bfloat16* a, const bfloat16* b, int64_t n, bfloat16* y, ThreadPool& pool);
// y may be x.
void scale(const float* x, float factor, int64_t n, float* y, ThreadPool& pool);
void scale(const bfloat16* x, float factor, int64_t n, bfloat16* y, ThreadPool& pool);
void fill(float value, int64_t n, float* y, ThreadPool& pool);
void fill(float value, int64_t n, bfloat16* y, ThreadPool& pool);
// y += x
void accumulate(const float* x, int64_t n, float* y, ThreadPool& pool);
void accumulate(const bfloat16* x, int64_t n, float* y, ThreadPool& pool);

void cast(const float* x, int64_t n, float* y, ThreadPool& pool);
void cast(const float* x, int64_t n, bfloat16* y, ThreadPool& pool);
void cast(const bfloat16* x, int64_t n, float* y, ThreadPool& pool);
void cast(const bfloat16* x, int64_t n, bfloat16* y, ThreadPool& pool);

// A source of up to eight dimensions; strides count elements and may be zero or negative.
struct Strided {
  static constexpr int kMaxDims = 8;
  int dims = 0;
  int64_t sizes[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < dims; ++i) n *= sizes[i];
    return n;
  }
};

// The same with dimensions of size 1 dropped and neighbours that lie densely joined, so that the
// innermost runs are as long as they can be. At least one dimension remains.
Strided joined(const Strided& shape);

// y is contiguous.
void cast(const float* x, const Strided& shape, float* y, ThreadPool& pool);
void cast(const float* x, const Strided& shape, bfloat16* y, ThreadPool& pool);
void cast(const bfloat16* x, const Strided& shape, float* y, ThreadPool& pool);
void cast(const bfloat16* x, const Strided& shape, bfloat16* y, ThreadPool& pool);

namespace reference {
void add(const double* a, const double* b, int64_t n, double* y);
void scale(const double* x, double factor, int64_t n, double* y);
void accumulate(const double* x, int64_t n, double* y);
// Element `flat` of the strided source in row-major order.
int64_t strided_offset(const Strided& shape, int64_t flat);
}  // namespace reference

}  // namespace ds::kernels
