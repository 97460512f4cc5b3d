// Addition, scaling, filling, conversion and accumulation, element by element. T, X and Y are
// float, bfloat16 or float16; arithmetic is fp32.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// y may be a or b.
template <class T>
void add(const T* a, const T* b, int64_t n, T* y, ThreadPool& pool);
template <class T>
void add(const T* a, const T* b, int64_t n, T* y, const GpuStream& on);
// y may be x.
template <class T>
void scale(const T* x, float factor, int64_t n, T* y, ThreadPool& pool);
template <class T>
void scale(const T* x, float factor, int64_t n, T* y, const GpuStream& on);
template <class T>
void fill(float value, int64_t n, T* y, ThreadPool& pool);
template <class T>
void fill(float value, int64_t n, T* y, const GpuStream& on);
// sum += factor * x, one rounding to fp32 and one to Y; sum may be x.
template <class X, class Y>
void accumulate(const X* x, float factor, int64_t n, Y* sum, ThreadPool& pool);
template <class X, class Y>
void accumulate(const X* x, float factor, int64_t n, Y* sum, const GpuStream& on);

// The same for many pairs of arrays, of which no sums overlap, in few launches.
template <class X, class Y>
struct Accumulation {
  const X* x = nullptr;
  Y* sum = nullptr;
  int64_t n = 0;
};
template <class X, class Y>
void accumulate_many(const Accumulation<X, Y>* parts, int64_t count, float factor,
                     const GpuStream& on);

// Equal types are copied bit by bit.
template <class X, class Y>
void cast(const X* x, int64_t n, Y* y, ThreadPool& pool);
template <class X, class Y>
void cast(const X* x, int64_t n, Y* y, const GpuStream& on);

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
template <class X, class Y>
void cast(const X* x, const Strided& shape, Y* y, ThreadPool& pool);
template <class X, class Y>
void cast(const X* x, const Strided& shape, Y* y, const GpuStream& on);

namespace reference {
void add(const double* a, const double* b, int64_t n, double* y);
void scale(const double* x, double factor, int64_t n, double* y);
void accumulate(const double* x, double factor, int64_t n, double* sum);
}  // namespace reference

}  // namespace ds::kernels
