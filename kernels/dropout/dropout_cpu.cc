// Dropout with Highway.
#include "kernels/dropout/dropout.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dropout/dropout_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// Random bits are made for a tile that stays in the first-level cache.
constexpr int64_t kTile = 1024;

template <bool kResidual, class T>
void dropout_range(const DropoutMask& mask, uint64_t first, const T* x, const T* residual,
                   int64_t n, T* y) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const simd::Philox philox(mask.stream);
  const VF scale = hn::Set(d, mask.keep_scale);
  const auto threshold = hn::Set(du, mask.threshold);
  uint32_t buffer[kTile + simd::Philox::kPadding];
  for (int64_t begin = 0; begin < n; begin += kTile) {
    const int64_t size = n - begin < kTile ? n - begin : kTile;
    const uint32_t* bits = philox.random_bits(first + static_cast<uint64_t>(begin), size, buffer);
    simd::for_vectors(size, [&](int64_t i, auto count) DS_SIMD_BODY {
      const auto drop = hn::RebindMask(d, hn::Lt(hn::LoadU(du, bits + i), threshold));
      VF v = hn::Mul(simd::load_n(d, x + begin + i, count), scale);
      v = hn::IfThenZeroElse(drop, v);
      if constexpr (kResidual) v = hn::Add(v, simd::load_n(d, residual + begin + i, count));
      simd::store_n(v, d, y + begin + i, count);
    });
  }
}

// Nothing is dropped.
template <bool kResidual, class T>
void scale_range(float keep_scale, const T* x, const T* residual, int64_t n, T* y) {
  const DF d;
  const VF scale = hn::Set(d, keep_scale);
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    VF v = hn::Mul(simd::load_n(d, x + i, count), scale);
    if constexpr (kResidual) v = hn::Add(v, simd::load_n(d, residual + i, count));
    simd::store_n(v, d, y + i, count);
  });
}

template <class T>
void dropout_any(const DropoutMask& mask, uint64_t first, const T* x, const T* residual, int64_t n,
                 T* y) {
  if (mask.threshold == 0) {
    if (residual != nullptr) {
      scale_range<true>(mask.keep_scale, x, residual, n, y);
    } else {
      scale_range<false>(mask.keep_scale, x, residual, n, y);
    }
  } else if (residual != nullptr) {
    dropout_range<true>(mask, first, x, residual, n, y);
  } else {
    dropout_range<false>(mask, first, x, residual, n, y);
  }
}
void dropout_f32(const DropoutMask& mask, uint64_t first, const float* x, const float* residual,
                 int64_t n, float* y) {
  dropout_any(mask, first, x, residual, n, y);
}
void dropout_bf16(const DropoutMask& mask, uint64_t first, const bfloat16* x,
                  const bfloat16* residual, int64_t n, bfloat16* y) {
  dropout_any(mask, first, x, residual, n, y);
}
void dropout_f16(const DropoutMask& mask, uint64_t first, const float16* x, const float16* residual,
                 int64_t n, float16* y) {
  dropout_any(mask, first, x, residual, n, y);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(dropout_f32);
HWY_EXPORT(dropout_bf16);
HWY_EXPORT(dropout_f16);

constexpr int64_t kGrain = int64_t{1} << 14;

template <class T, class Range>
void dropout_chunks(const DropoutMask& mask, const T* x, const T* residual, int64_t n, T* y,
                    ThreadPool& pool, const Range& range) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    range(mask, mask.first_element + static_cast<uint64_t>(begin), x + begin,
          residual != nullptr ? residual + begin : nullptr, end - begin, y + begin);
  });
}

}  // namespace

DropoutMask dropout_mask(const RandomStream& stream, uint64_t first_element, double p) {
  return {stream, first_element, dropout_threshold(p), static_cast<float>(1.0 / (1.0 - p))};
}

void dropout(const DropoutMask& mask, const float* x, const float* residual, int64_t n, float* y,
             ThreadPool& pool) {
  dropout_chunks(mask, x, residual, n, y, pool, HWY_DYNAMIC_DISPATCH(dropout_f32));
}
void dropout(const DropoutMask& mask, const bfloat16* x, const bfloat16* residual, int64_t n,
             bfloat16* y, ThreadPool& pool) {
  dropout_chunks(mask, x, residual, n, y, pool, HWY_DYNAMIC_DISPATCH(dropout_bf16));
}
void dropout(const DropoutMask& mask, const float16* x, const float16* residual, int64_t n,
             float16* y, ThreadPool& pool) {
  dropout_chunks(mask, x, residual, n, y, pool, HWY_DYNAMIC_DISPATCH(dropout_f16));
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
