// Vector code of softmax cross entropy. A row is read twice, the second time from the cache: for
// its maximum, then for the sum of exponentials.
#include "kernels/loss/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/loss/cross_entropy_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// A NaN may be skipped here; it then shows in the sum.
template <class T>
HWY_INLINE float row_max(const T* x, int64_t n) {
  const DF d;
  const int64_t step = simd::lanes();
  const VF lowest = hn::Neg(hn::Inf(d));
  VF m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
  int64_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    m0 = hn::Max(m0, simd::load(d, x + i));
    m1 = hn::Max(m1, simd::load(d, x + i + step));
    m2 = hn::Max(m2, simd::load(d, x + i + 2 * step));
    m3 = hn::Max(m3, simd::load(d, x + i + 3 * step));
  }
  for (; i + step <= n; i += step) m0 = hn::Max(m0, simd::load(d, x + i));
  if (i < n) {
    const VF tail = simd::load_n(d, x + i, n - i);
    m1 = hn::Max(m1, hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(n - i)), tail, lowest));
  }
  return simd::max_of_lanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
}

template <class T>
HWY_INLINE double sum_exp(const T* x, int64_t n, float largest) {
  const DF d;
  const VF shift = hn::Set(d, largest);
  constexpr int64_t kBlock = 4096;  // fp32 partial sums stay short
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const T* block = x + begin;
    const int64_t size = HWY_MIN(kBlock, n - begin);
    total += static_cast<double>(simd::sum_over(size, [&](int64_t j, auto count) DS_SIMD_BODY {
      return simd::keep_n(d, simd::exp(d, hn::Sub(simd::load_n(d, block + j, count), shift)),
                          count);
    }));
  }
  return total;
}

template <class T>
void scaled_softmax(const T* x, int64_t n, float lse, float scale, T* y) {
  const DF d;
  const VF shift = hn::Set(d, lse), factor = hn::Set(d, scale);
  simd::for_vectors(n, [&](int64_t j, auto count) DS_SIMD_BODY {
    const VF p = simd::exp(d, hn::Sub(simd::load_n(d, x + j, count), shift));
    simd::store_n(hn::Mul(p, factor), d, y + j, count);
  });
}

// The sum of exponentials of the differences from the largest element.
double row_sum_float(const float* x, int64_t n, float* largest) {
  *largest = row_max(x, n);
  return sum_exp(x, n, *largest);
}
double row_sum_bfloat16(const bfloat16* x, int64_t n, float* largest) {
  *largest = row_max(x, n);
  return sum_exp(x, n, *largest);
}
double row_sum_float16(const float16* x, int64_t n, float* largest) {
  *largest = row_max(x, n);
  return sum_exp(x, n, *largest);
}
void softmax_float(const float* x, int64_t n, float lse, float scale, float* y) {
  scaled_softmax(x, n, lse, scale, y);
}
void softmax_bfloat16(const bfloat16* x, int64_t n, float lse, float scale, bfloat16* y) {
  scaled_softmax(x, n, lse, scale, y);
}
void softmax_float16(const float16* x, int64_t n, float lse, float scale, float16* y) {
  scaled_softmax(x, n, lse, scale, y);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(row_sum_float);
HWY_EXPORT(row_sum_bfloat16);
HWY_EXPORT(row_sum_float16);
HWY_EXPORT(softmax_float);
HWY_EXPORT(softmax_bfloat16);
HWY_EXPORT(softmax_float16);

double row_sum(const float* x, int64_t n, float* largest) {
  return HWY_DYNAMIC_DISPATCH(row_sum_float)(x, n, largest);
}
double row_sum(const bfloat16* x, int64_t n, float* largest) {
  return HWY_DYNAMIC_DISPATCH(row_sum_bfloat16)(x, n, largest);
}
double row_sum(const float16* x, int64_t n, float* largest) {
  return HWY_DYNAMIC_DISPATCH(row_sum_float16)(x, n, largest);
}
void softmax(const float* x, int64_t n, float lse, float scale, float* y) {
  HWY_DYNAMIC_DISPATCH(softmax_float)(x, n, lse, scale, y);
}
void softmax(const bfloat16* x, int64_t n, float lse, float scale, bfloat16* y) {
  HWY_DYNAMIC_DISPATCH(softmax_bfloat16)(x, n, lse, scale, y);
}
void softmax(const float16* x, int64_t n, float lse, float scale, float16* y) {
  HWY_DYNAMIC_DISPATCH(softmax_float16)(x, n, lse, scale, y);
}

int64_t rows_per_chunk(int64_t columns) {
  constexpr int64_t kGrain = 16384;  // elements
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1));
}

}  // namespace

template <class T>
void cross_entropy(const T* logits, const int32_t* labels, int64_t rows, int64_t columns,
                   int64_t valid, float* loss, float* lse, ThreadPool& pool) {
  pool.for_range(rows, rows_per_chunk(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (labels[row] < 0) {
        loss[row] = lse[row] = 0;
        continue;
      }
      const T* x = logits + row * columns;
      float largest = 0;
      const double log_sum = std::log(row_sum(x, valid, &largest));
      lse[row] = static_cast<float>(static_cast<double>(largest) + log_sum);
      // Not lse - x: the small difference of two large numbers would lose what log_sum knows.
      loss[row] =
          static_cast<float>(static_cast<double>(largest) - to_float(x[labels[row]]) + log_sum);
    }
  });
}

template <class T>
void cross_entropy_backward(const T* logits, const int32_t* labels, int64_t rows, int64_t columns,
                            int64_t valid, const float* lse, float scale, T* dlogits,
                            ThreadPool& pool) {
  pool.for_range(rows, rows_per_chunk(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = logits + row * columns;
      T* dx = dlogits + row * columns;
      const int32_t label = labels[row];
      if (label < 0) {
        std::fill(dx, dx + columns, T{});
        continue;
      }
      // p - 1 of the label, exact where p is near 1. Read before dx, which may be x, is written.
      const double log_p = static_cast<double>(to_float(x[label])) - static_cast<double>(lse[row]);
      softmax(x, valid, lse[row], scale, dx);
      dx[label] = from_float<T>(static_cast<float>(static_cast<double>(scale) * std::expm1(log_p)));
      std::fill(dx + valid, dx + columns, T{});
    }
  });
}

template void cross_entropy(const float*, const int32_t*, int64_t, int64_t, int64_t, float*, float*,
                            ThreadPool&);
template void cross_entropy(const bfloat16*, const int32_t*, int64_t, int64_t, int64_t, float*,
                            float*, ThreadPool&);
template void cross_entropy(const float16*, const int32_t*, int64_t, int64_t, int64_t, float*,
                            float*, ThreadPool&);
template void cross_entropy_backward(const float*, const int32_t*, int64_t, int64_t, int64_t,
                                     const float*, float, float*, ThreadPool&);
template void cross_entropy_backward(const bfloat16*, const int32_t*, int64_t, int64_t, int64_t,
                                     const float*, float, bfloat16*, ThreadPool&);
template void cross_entropy_backward(const float16*, const int32_t*, int64_t, int64_t, int64_t,
                                     const float*, float, float16*, ThreadPool&);

}  // namespace ds::kernels
#endif  // HWY_ONCE
