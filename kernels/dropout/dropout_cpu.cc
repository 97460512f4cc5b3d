// Dropout with Highway.
#include "kernels/dropout/dropout.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dropout/dropout_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/map-inl.h"
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
    const uint64_t element = first + static_cast<uint64_t>(begin);
    const uint32_t* bits = buffer;
    const auto dropped = [&](auto at) DS_SIMD_BODY {
      const auto drop = hn::RebindMask(d, hn::Lt(hn::LoadU(du, bits + at.slot), threshold));
      VF v = hn::IfThenZeroElse(drop, hn::Mul(at.load(x + begin), scale));
      if constexpr (kResidual) v = hn::Add(v, at.load(residual + begin));
      return v;
    };
    if (simd::kSplit<T> && element % 4 == 0) {
      philox.paired_bits(element, simd::paired(size), size, buffer);
      simd::map<T>(size, dropped, y + begin);
    } else {
      bits = philox.random_bits(element, size, buffer);
      simd::map<float>(size, dropped, y + begin);
    }
  }
}

// Nothing is dropped.
template <bool kResidual, class T>
void scale_range(float keep_scale, const T* x, const T* residual, int64_t n, T* y) {
  const VF scale = hn::Set(DF(), keep_scale);
  simd::map<T>(
      n,
      [&](auto at) DS_SIMD_BODY {
        VF v = hn::Mul(at.load(x), scale);
        if constexpr (kResidual) v = hn::Add(v, at.load(residual));
        return v;
      },
      y);
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
    for (int64_t next = begin; begin < end; begin = next) {
      const int64_t sample = begin / mask.sample_elements;
      const int64_t within = begin - sample * mask.sample_elements;
      next = std::min(end, begin - within + mask.sample_elements);
      range(mask, RandomStream::first_of_sample(sample) + static_cast<uint64_t>(within), x + begin,
            residual != nullptr ? residual + begin : nullptr, next - begin, y + begin);
    }
  });
}

}  // namespace

DropoutMask dropout_mask(const RandomStream& stream, int64_t sample_elements, double p) {
  return {stream, sample_elements, dropout_threshold(p), static_cast<float>(1.0 / (1.0 - p))};
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
