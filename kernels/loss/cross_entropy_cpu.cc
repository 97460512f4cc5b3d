// Vector code of softmax cross entropy. A row is taken in chunks that stay in the first-level
// cache: the maximum of the chunk, then the sum of exponentials relative to the largest element so
// far; so memory is read once and while the arithmetic runs.
#include "kernels/loss/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/float_type.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/loss/cross_entropy_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/map-inl.h"

#ifndef DS_KERNELS_LOSS_ROW_SUM
#define DS_KERNELS_LOSS_ROW_SUM
namespace ds::kernels {
namespace {

// sum = sum of exp(x - largest)
struct RowSum {
  float largest = -std::numeric_limits<float>::infinity();
  double sum = 0;
};

// Elements of a chunk: fp32 partial sums stay short, and while exponentials are worked out, loops
// fetch the chunk behind this one (kernels/map-inl.h).
template <class T>
inline constexpr int64_t kChunk = 4096 / static_cast<int64_t>(sizeof(T));

}  // namespace
}  // namespace ds::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::Exp2;
using simd::VF;

// A NaN may be skipped here; it then shows in the sum.
template <class T>
HWY_INLINE float max_of(const T* x, int64_t n) {
  const DF d;
  const VF lowest = hn::Neg(hn::Inf(d));
  VF most[2] = {lowest, lowest};
  simd::visit<T>(n, [&](auto at) DS_SIMD_BODY {
    most[at.index] = hn::Max(most[at.index], at.keep_or(at.load(x), lowest));
  });
  return simd::max_of_lanes(d, hn::Max(most[0], most[1]));
}

// Takes the chunk's maximum into account; returns what the exponents are relative to.
template <class T>
HWY_INLINE float raise_maximum(RowSum& row, const T* x, int64_t n) {
  const float most = max_of(x, n);
  if (most > row.largest) {
    row.sum *= std::exp(static_cast<double>(row.largest) - static_cast<double>(most));
    row.largest = most;
  }
  // Where all were -inf so far, any finite number serves.
  return row.largest == -std::numeric_limits<float>::infinity() ? 0 : row.largest;
}

template <class T>
RowSum row_sum(const T* x, int64_t n) {
  const DF d;
  RowSum row;
  for (int64_t begin = 0; begin < n; begin += kChunk<T>) {
    const T* chunk = x + begin;
    const int64_t size = HWY_MIN(kChunk<T>, n - begin);
    const VF shift = hn::Set(d, raise_maximum(row, chunk, size)), log2e = hn::Set(d, simd::kLog2e);
    simd::Sums sums;
    simd::visit<T>(size, [&](auto at) DS_SIMD_BODY {
      const VF y = hn::Mul(hn::Sub(at.load(chunk), shift), log2e);
      sums.add(at, at.keep(simd::exp2<Exp2::kClose>(d, y)));
    });
    row.sum += static_cast<double>(sums.total());
  }
  return row;
}

// y = scale * exp(x - lse)
template <class T>
void scaled_softmax(const T* x, int64_t n, float lse, float scale, T* y) {
  constexpr Exp2 kKind = std::is_same_v<T, bfloat16> ? Exp2::kRough : Exp2::kExact;
  const DF d;
  const VF log2e = hn::Set(d, simd::kLog2e), factor = hn::Set(d, scale);
  const VF shift = hn::Set(d, static_cast<float>(static_cast<double>(lse) * M_LOG2E));
  simd::map<T>(
      n,
      [&](auto at) DS_SIMD_BODY {
        return hn::Mul(simd::exp2<kKind>(d, hn::MulSub(at.load(x), log2e, shift)), factor);
      },
      y);
}

// The row's sum, and the row becomes scale * softmax. `exponentials` has room for n numbers; it is
// x itself for float.
template <class T>
RowSum fused_row(T* x, int64_t n, float scale, float* exponentials) {
  constexpr int64_t kMostChunks = kFusedColumns / kChunk<T>;
  const DF d;
  const VF log2e = hn::Set(d, simd::kLog2e);
  RowSum row;
  float largest[kMostChunks];  // what the chunk's exponents are relative to
  for (int64_t begin = 0; begin < n; begin += kChunk<T>) {
    const T* chunk = x + begin;
    float* to = exponentials + begin;
    const int64_t size = HWY_MIN(kChunk<T>, n - begin);
    const float least = largest[begin / kChunk<T>] = raise_maximum(row, chunk, size);
    const VF shift = hn::Set(d, least);
    simd::Sums sums;
    simd::visit<T>(size, [&](auto at) DS_SIMD_BODY {
      const VF y = hn::Mul(hn::Sub(at.load(chunk), shift), log2e);
      const VF e = at.keep(simd::exp2<Exp2::kClose>(d, y));
      sums.add(at, e);
      at.store_scratch(e, to);
    });
    row.sum += static_cast<double>(sums.total());
  }
  for (int64_t begin = 0; begin < n; begin += kChunk<T>) {
    const float* from = exponentials + begin;
    const double later =
        static_cast<double>(largest[begin / kChunk<T>]) - static_cast<double>(row.largest);
    const VF factor = hn::Set(d, static_cast<float>(scale * std::exp(later) / row.sum));
    simd::map<T>(
        HWY_MIN(kChunk<T>, n - begin),
        [&](auto at) DS_SIMD_BODY { return hn::Mul(at.load_scratch(from), factor); }, x + begin);
  }
  return row;
}

// What is exported, with pointers to elements of the type that is named.

RowSum sum_any(FloatType type, const void* x, int64_t n) {
  return with_float_type(type,
                         [&](auto t) { return row_sum(static_cast<const decltype(t)*>(x), n); });
}
void softmax_any(FloatType type, const void* x, int64_t n, float lse, float scale, void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    scaled_softmax(static_cast<const T*>(x), n, lse, scale, static_cast<T*>(y));
  });
}
RowSum fused_any(FloatType type, void* x, int64_t n, float scale, float* exponentials) {
  return with_float_type(type, [&](auto t) {
    return fused_row(static_cast<decltype(t)*>(x), n, scale, exponentials);
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(sum_any);
HWY_EXPORT(softmax_any);
HWY_EXPORT(fused_any);

int64_t rows_per_chunk(int64_t columns) {
  constexpr int64_t kGrain = 16384;  // elements
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1));
}

double log_sum_exp(const RowSum& row) {
  return static_cast<double>(row.largest) + std::log(row.sum);
}

// Not lse - x: the small difference of two large numbers would lose what the logarithm knows.
float loss_of(const RowSum& row, float logit) {
  return static_cast<float>(static_cast<double>(row.largest) - static_cast<double>(logit) +
                            std::log(row.sum));
}

// scale * (p - 1), exact where p is near 1.
template <class T>
T label_gradient(float scale, float logit, double lse) {
  const double log_p = static_cast<double>(logit) - lse;
  return from_float<T>(static_cast<float>(static_cast<double>(scale) * std::expm1(log_p)));
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
      const RowSum sum = HWY_DYNAMIC_DISPATCH(sum_any)(kFloatType<T>, x, valid);
      lse[row] = static_cast<float>(log_sum_exp(sum));
      loss[row] = loss_of(sum, to_float(x[labels[row]]));
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
      const float logit = to_float(x[label]);  // before dx, which may be x, is written
      HWY_DYNAMIC_DISPATCH(softmax_any)(kFloatType<T>, x, valid, lse[row], scale, dx);
      dx[label] = label_gradient<T>(scale, logit, static_cast<double>(lse[row]));
      std::fill(dx + valid, dx + columns, T{});
    }
  });
}

template <class T>
void cross_entropy_fused(T* logits, const int32_t* labels, int64_t rows, int64_t columns,
                         int64_t valid, float scale, float* loss, ThreadPool& pool) {
  pool.for_range(rows, rows_per_chunk(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* const x = logits + row * columns;
      const int32_t label = labels[row];
      if (label < 0) {
        loss[row] = 0;
        std::fill(x, x + columns, T{});
        continue;
      }
      const float logit = to_float(x[label]);
      RowSum sum;
      if (valid > kFusedColumns) {
        sum = HWY_DYNAMIC_DISPATCH(sum_any)(kFloatType<T>, x, valid);
        HWY_DYNAMIC_DISPATCH(softmax_any)
        (kFloatType<T>, x, valid, static_cast<float>(log_sum_exp(sum)), scale, x);
      } else if constexpr (std::is_same_v<T, float>) {
        sum = HWY_DYNAMIC_DISPATCH(fused_any)(FloatType::kFloat32, x, valid, scale, x);
      } else {
        static thread_local std::vector<float> exponentials;
        if (static_cast<int64_t>(exponentials.size()) < valid) {
          exponentials.resize(static_cast<size_t>(valid));
        }
        sum = HWY_DYNAMIC_DISPATCH(fused_any)(kFloatType<T>, x, valid, scale, exponentials.data());
      }
      loss[row] = loss_of(sum, logit);
      x[label] = label_gradient<T>(scale, logit, log_sum_exp(sum));
      std::fill(x + valid, x + columns, T{});
    }
  });
}

#define DS_ONE_TYPE(T)                                                                             \
  template void cross_entropy(const T*, const int32_t*, int64_t, int64_t, int64_t, float*, float*, \
                              ThreadPool&);                                                        \
  template void cross_entropy_backward(const T*, const int32_t*, int64_t, int64_t, int64_t,        \
                                       const float*, float, T*, ThreadPool&);                      \
  template void cross_entropy_fused(T*, const int32_t*, int64_t, int64_t, int64_t, float, float*,  \
                                    ThreadPool&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
#endif  // HWY_ONCE
