// Panels of codes as dense rows of w^T, for products with many rows of x.
#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/quantize/quantize.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/dequantize_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/quantize/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

// `out` is where element (0, first row of the panel) goes; rows of `out` lie `stride` apart.
template <Codes kCodes, class T>
void panel_as(const QuantizedMatrix& w, int64_t panel, T* out, int64_t stride) {
  const DF d;
  const VF table = code_table<kCodes>(d), excess = hn::Set(d, kExcess<kCodes>);
  const uint8_t* codes = w.codes + panel * w.panel_bytes();
  for (int64_t s = 0; s < kSlices; ++s) {
    const uint8_t* slice = codes + s * kSliceRows * (kCodes == Codes::k8 ? 1 : 4);
    for (int64_t g = 0; g < w.groups(); ++g) {
      const int64_t at = (panel * w.groups() + g) * kPanelRows + s * kSliceRows;
      const VF scale = simd::load(d, w.scales + at);
      const VF base = kCodes == Codes::k4Minima ? simd::load(d, w.minimum + at) : hn::Zero(d);
      const int64_t begin = g * w.group_length();
      const int64_t end = std::min(begin + w.group_length(), w.padded_k());
      for (int64_t l = begin; l < end; l += 8) {
        for_block<kCodes>(d, slice, l / 8, table, [&](int e, VF code) DS_SIMD_BODY {
          if (l + e >= w.k) return;
          if constexpr (kExcess<kCodes> != 0) code = hn::Sub(code, excess);
          simd::store(hn::MulAdd(code, scale, base), d, out + (l + e) * stride + s * kSliceRows);
        });
      }
    }
  }
}

template <class T>
void panel(const QuantizedMatrix& w, int64_t index, void* out, int64_t stride) {
  T* to = static_cast<T*>(out);
  if (w.bits == 8) return panel_as<Codes::k8>(w, index, to, stride);
  return w.minima ? panel_as<Codes::k4Minima>(w, index, to, stride)
                  : panel_as<Codes::k4>(w, index, to, stride);
}

void panel_f32(const QuantizedMatrix& w, int64_t index, void* out, int64_t stride) {
  panel<float>(w, index, out, stride);
}
void panel_bf16(const QuantizedMatrix& w, int64_t index, void* out, int64_t stride) {
  panel<bfloat16>(w, index, out, stride);
}
void panel_f16(const QuantizedMatrix& w, int64_t index, void* out, int64_t stride) {
  panel<float16>(w, index, out, stride);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(panel_f32);
HWY_EXPORT(panel_bf16);
HWY_EXPORT(panel_f16);

}  // namespace

void dequantize_panels(const QuantizedMatrix& w, int64_t first, int64_t panels, FloatType type,
                       void* out, ThreadPool& pool) {
  const auto one = type == FloatType::kBFloat16  ? HWY_DYNAMIC_DISPATCH(panel_bf16)
                   : type == FloatType::kFloat16 ? HWY_DYNAMIC_DISPATCH(panel_f16)
                                                 : HWY_DYNAMIC_DISPATCH(panel_f32);
  const int64_t item = type == FloatType::kFloat32 ? 4 : 2;
  // Two panels of bf16 fill a cache line, which one thread should write.
  pool.for_range(panels, 2, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      one(w, first + p, static_cast<std::byte*>(out) + p * kPanelRows * item, panels * kPanelRows);
    }
  });
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
