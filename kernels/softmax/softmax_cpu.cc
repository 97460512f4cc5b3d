// Vector code of softmax. A row is read three times, from the cache but for the first: for its
// largest score, for the sum of exponentials and for the probabilities, which are so rounded once.
#include "kernels/softmax/softmax.h"

#include <algorithm>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax/softmax_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

HWY_INLINE hn::Mask<DF> first_lanes(DF d, simd::AllLanes) {
  return hn::FirstN(d, static_cast<size_t>(simd::lanes()));
}
HWY_INLINE hn::Mask<DF> first_lanes(DF d, int64_t count) {
  return hn::FirstN(d, static_cast<size_t>(count));
}
HWY_INLINE hn::Vec<hn::Rebind<uint8_t, DF>> load_bytes(const uint8_t* p, simd::AllLanes) {
  return hn::LoadU(hn::Rebind<uint8_t, DF>(), p);
}
HWY_INLINE hn::Vec<hn::Rebind<uint8_t, DF>> load_bytes(const uint8_t* p, int64_t count) {
  HWY_ALIGN uint8_t buffer[hn::MaxLanes(DF())];
  for (int64_t i = 0; i < simd::lanes(); ++i) buffer[i] = i < count ? p[i] : uint8_t{0};
  return hn::LoadU(hn::Rebind<uint8_t, DF>(), buffer);
}

// Scores of a row times the scale, -inf where they are hidden or no elements.
template <class T>
struct Scores {
  const T* x;
  const uint8_t* mask;
  VF scale;

  template <class Count>
  HWY_INLINE VF load(DF d, int64_t i, Count count) const {
    auto seen = first_lanes(d, count);
    if (mask != nullptr) {
      const hn::RebindToUnsigned<DF> d32;
      const auto bytes = hn::PromoteTo(d32, load_bytes(mask + i, count));
      seen = hn::And(seen, hn::RebindMask(d, hn::Ne(bytes, hn::Zero(d32))));
    }
    const VF v = hn::Mul(simd::load_n(d, x + i, count), scale);
    return hn::IfThenElse(seen, v, hn::Neg(hn::Inf(d)));
  }
};

// e^v for v <= 0, exactly 0 at -inf; NaN stays NaN.
HWY_INLINE VF exponential(DF d, VF v) {
  return hn::IfThenZeroElse(hn::Eq(v, hn::Neg(hn::Inf(d))), simd::exp(d, v));
}

template <class T>
void forward_row(const T* x, const uint8_t* mask, int64_t visible, int64_t n, float scale, T* y) {
  const DF d;
  const Scores<T> scores{x, mask, hn::Set(d, scale)};
  // A NaN may be skipped here; it then shows in the sum.
  VF most = hn::Neg(hn::Inf(d));
  simd::for_vectors(visible, [&](int64_t i, auto count)
                                 DS_SIMD_BODY { most = hn::Max(most, scores.load(d, i, count)); });
  const float largest = simd::max_of_lanes(d, most);
  // Where all are -inf, any finite number serves: the sum is 0, or NaN.
  const VF shift = hn::Set(d, largest == -std::numeric_limits<float>::infinity() ? 0 : largest);
  const float sum = simd::sum_over(visible, [&](int64_t i, auto count) DS_SIMD_BODY {
    return exponential(d, hn::Sub(scores.load(d, i, count), shift));
  });
  const VF factor = hn::Set(d, sum == 0 ? 0.0f : 1 / sum);
  simd::for_vectors(visible, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF score = scores.load(d, i, count);
    const VF p = hn::Mul(exponential(d, hn::Sub(score, shift)), factor);
    const auto hidden = hn::Eq(score, hn::Neg(hn::Inf(d)));
    simd::store_n(hn::IfThenZeroElse(hidden, p), d, y + i, count);
  });
  std::fill(y + visible, y + n, T{});
}

template <class T>
void backward_row(const T* y, const T* dy, int64_t n, float scale, T* dx) {
  const DF d;
  const float dot = simd::sum_over(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    return hn::Mul(simd::load_n(d, y + i, count), simd::load_n(d, dy + i, count));
  });
  const VF mean = hn::Set(d, dot), factor = hn::Set(d, scale);
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF less = hn::Sub(simd::load_n(d, dy + i, count), mean);
    const VF p = hn::Mul(simd::load_n(d, y + i, count), factor);
    simd::store_n(hn::Mul(p, less), d, dx + i, count);
  });
}

// What is exported: rows [begin, end), with pointers to elements of the type that is named.

void forward_any(const Softmax& call, int64_t begin, int64_t end) {
  with_float_type(call.type, [&](auto t) {
    using T = decltype(t);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t query = row % call.queries, head = row / call.queries % call.heads;
      const uint8_t* mask = call.mask;
      if (mask != nullptr) {
        mask += row / call.queries / call.heads * call.mask_strides[0] +
                head * call.mask_strides[1] + query * call.mask_strides[2];
      }
      const int64_t last = query + call.keys - call.queries;
      const int64_t visible = call.causal ? std::clamp<int64_t>(last + 1, 0, call.keys) : call.keys;
      forward_row(static_cast<const T*>(call.x) + row * call.keys, mask, visible, call.keys,
                  call.scale, static_cast<T*>(call.y) + row * call.keys);
    }
  });
}

void backward_any(const SoftmaxBackward& call, int64_t begin, int64_t end) {
  with_float_type(call.type, [&](auto t) {
    using T = decltype(t);
    for (int64_t at = begin * call.keys; at < end * call.keys; at += call.keys) {
      backward_row(static_cast<const T*>(call.y) + at, static_cast<const T*>(call.dy) + at,
                   call.keys, call.scale, static_cast<T*>(call.dx) + at);
    }
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(forward_any);
HWY_EXPORT(backward_any);

// Rows that one thread takes at a time.
int64_t row_grain(int64_t keys) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, keys)); }

}  // namespace

void softmax(const Softmax& call, ThreadPool& pool) {
  if (call.keys == 0) return;
  pool.for_range(call.rows(), row_grain(call.keys), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(forward_any)(call, begin, end);
  });
}

void softmax_backward(const SoftmaxBackward& call, ThreadPool& pool) {
  if (call.keys == 0) return;
  pool.for_range(call.rows, row_grain(call.keys), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(backward_any)(call, begin, end);
  });
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
