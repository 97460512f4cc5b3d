// Vector code of softmax cross entropy. A row's largest element is not looked for: exponentials are
// relative to that of the first block, and only where they get out of hand relative to a later one.
// So memory is read once and while the arithmetic runs.
#include "kernels/loss/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/thread_pool.h"
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

// sum = sum of exp(x - shift); of nothing but -inf it is 0, whatever the shift.
struct RowSum {
  float shift;
  double sum;
};

// Elements whose exponentials are added up in fp32.
constexpr int64_t kBlock = 1024;

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

// Asks for elements to come into the second-level cache, once per line.
template <class At, class T>
HWY_INLINE void fetch(At at, const T* p) {
  if constexpr (sizeof(T) == 4 || At::index == 0) __builtin_prefetch(p + at.slot, 0, 2);
}

// Takes the block's largest element as the shift.
template <class T>
HWY_INLINE void shift_to_block(RowSum& row, const T* block, int64_t n) {
  const float largest = max_of(block, n);
  if (row.sum > 0) {
    row.sum *= std::exp(static_cast<double>(row.shift) - static_cast<double>(largest));
  }
  row.shift = largest;
}

template <class T>
RowSum row_sum(const T* x, int64_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kFar = 8192 / static_cast<int64_t>(sizeof(T));  // beyond what loads ask for
  const DF d;
  const VF log2e = hn::Set(d, simd::kLog2e);
  const VF most = hn::Set(d, 0x1p80f);  // far from overflow, even times all blocks of a row
  RowSum row{-kInfinity, 0};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const T* block = x + begin;
    const int64_t size = HWY_MIN(kBlock, n - begin);
    if (row.shift == -kInfinity) shift_to_block(row, block, size);
    for (bool again = false;; again = true) {
      // Where all were -inf so far, any finite number serves.
      const VF shift = hn::Set(d, row.shift == -kInfinity ? 0 : row.shift);
      simd::Sums sums;
      simd::visit<T>(size, [&](auto at) DS_SIMD_BODY {
        fetch(at, block + kFar);
        const VF y = hn::Mul(hn::Sub(at.load(block), shift), log2e);
        sums.add(at, at.keep(simd::exp2<Exp2::kClose>(d, y)));
      });
      const bool fits = hn::AllFalse(d, hn::Gt(hn::Max(sums.s[0], sums.s[1]), most));
      if (HWY_LIKELY(fits || again)) {
        row.sum += static_cast<double>(sums.total());
        break;
      }
      shift_to_block(row, block, size);
    }
  }
  return row;
}

// y = factor * exp(x - shift). Meanwhile as many elements of `next` come into the
// second-level cache.
template <class T>
void scaled_exponentials(const T* x, const T* next, int64_t n, float shift, float factor, T* y) {
  const DF d;
  const VF log2e = hn::Set(d, simd::kLog2e), f = hn::Set(d, factor), s = hn::Set(d, shift);
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (factor > 0) {  // part of the exponent
      const VF scaled = hn::Set(d, shift * simd::kLog2e - std::log2(factor));
      simd::map<T>(
          n,
          [&](auto at) DS_SIMD_BODY {
            fetch(at, next);
            return simd::exp2<Exp2::kRough>(d, hn::MulSub(at.load(x), log2e, scaled));
          },
          y);
      return;
    }
  }
  simd::map<T>(
      n,
      [&](auto at) DS_SIMD_BODY {
        fetch(at, next);
        const VF e = simd::exp2<Exp2::kClose>(d, hn::Mul(hn::Sub(at.load(x), s), log2e));
        return hn::Mul(e, f);
      },
      y);
}

// What is exported, with pointers to elements of the type that is named.

RowSum sum_any(FloatType type, const void* x, int64_t n) {
  return with_float_type(type,
                         [&](auto t) { return row_sum(static_cast<const decltype(t)*>(x), n); });
}
void exponentials_any(FloatType type, const void* x, const void* next, int64_t n, float shift,
                      float factor, void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    scaled_exponentials(static_cast<const T*>(x), static_cast<const T*>(next), n, shift, factor,
                        static_cast<T*>(y));
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(sum_any);
HWY_EXPORT(exponentials_any);

// Several long rows, so that one is fetched while the one before it is finished.
int64_t rows_per_chunk(int64_t rows, int64_t columns) {
  constexpr int64_t kGrain = 16384;  // elements
  constexpr int64_t kLongRows = 8, kChunks = 64;
  return std::max(
      {int64_t{1}, kGrain / std::max<int64_t>(columns, 1), std::min(kLongRows, rows / kChunks)});
}

double log_sum_exp(const RowSum& row) { return static_cast<double>(row.shift) + std::log(row.sum); }

// Not lse - x: the small difference of two large numbers would lose what the logarithm knows.
float loss_of(const RowSum& row, float logit) {
  const double loss =
      static_cast<double>(row.shift) - static_cast<double>(logit) + std::log(row.sum);
  return loss < 0 ? 0 : static_cast<float>(loss);
}

// scale * (p - 1), exact where p = exp(log_p) is near 1.
template <class T>
T label_gradient(float scale, double log_p) {
  return from_float<T>(static_cast<float>(static_cast<double>(scale) * std::expm1(log_p)));
}

}  // namespace

template <class T>
void cross_entropy(const CrossEntropy<T>& call, ThreadPool& pool) {
  const int64_t grain = rows_per_chunk(call.rows, call.columns);
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (call.labels[row] < 0) {
        call.loss[row] = call.lse[row] = 0;
        continue;
      }
      const T* x = call.logits + row * call.columns;
      const RowSum sum = HWY_DYNAMIC_DISPATCH(sum_any)(kFloatType<T>, x, call.valid);
      call.lse[row] = static_cast<float>(log_sum_exp(sum));
      call.loss[row] = loss_of(sum, to_float(x[call.labels[row]]));
    }
  });
}

template <class T>
void cross_entropy_backward(const CrossEntropyBackward<T>& call, ThreadPool& pool) {
  const int64_t grain = rows_per_chunk(call.rows, call.columns);
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = call.logits + row * call.columns;
      T* dx = call.dlogits + row * call.columns;
      const int32_t label = call.labels[row];
      const float lse = call.lse[row];
      if (label < 0) {
        std::fill(dx, dx + call.columns, T{});
        continue;
      }
      const double log_p = static_cast<double>(to_float(x[label])) - static_cast<double>(lse);
      HWY_DYNAMIC_DISPATCH(exponentials_any)
      (kFloatType<T>, x, x, call.valid, lse, call.scale, dx);
      dx[label] = label_gradient<T>(call.scale, log_p);
      std::fill(dx + call.valid, dx + call.columns, T{});
    }
  });
}

template <class T>
void cross_entropy_fused(const CrossEntropyFused<T>& call, ThreadPool& pool) {
  const int64_t grain = rows_per_chunk(call.rows, call.columns);
  const float scale = call.scale.number;
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* const x = call.logits + row * call.columns;
      const T* const next = row + 1 < end ? x + call.columns : x;
      const int32_t label = call.labels[row];
      if (label < 0) {
        call.loss[row] = 0;
        std::fill(x, x + call.columns, T{});
        continue;
      }
      const float logit = to_float(x[label]);
      const RowSum sum = HWY_DYNAMIC_DISPATCH(sum_any)(kFloatType<T>, x, call.valid);
      const auto factor = static_cast<float>(static_cast<double>(scale) / sum.sum);
      HWY_DYNAMIC_DISPATCH(exponentials_any)
      (kFloatType<T>, x, next, call.valid, sum.shift, factor, x);
      call.loss[row] = loss_of(sum, logit);
      const double log_p = static_cast<double>(logit) - log_sum_exp(sum);
      x[label] = label_gradient<T>(scale, log_p);
      std::fill(x + call.valid, x + call.columns, T{});
    }
  });
}

#define DS_ONE_TYPE(T)                                                               \
  template void cross_entropy(const CrossEntropy<T>&, ThreadPool&);                  \
  template void cross_entropy_backward(const CrossEntropyBackward<T>&, ThreadPool&); \
  template void cross_entropy_fused(const CrossEntropyFused<T>&, ThreadPool&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
#endif  // HWY_ONCE
