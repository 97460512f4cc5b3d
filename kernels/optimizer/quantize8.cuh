// Block-wise 8-bit numbers in device code: the codes of quantize8-inl.h. A warp has a block of
// kStateBlock numbers.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/optimizer/dynamic_map.h"

namespace ds::kernels::quantize8 {

namespace {
// Read by lanes with indices of their own: a table is one line of the cache.
__device__ const DynamicMap kSignedMap = make_dynamic_map(6);
__device__ const DynamicMap kUnsignedMap = make_dynamic_map(7);
}  // namespace

template <bool kSigned>
inline constexpr int kTop = kSigned ? 6 : 7;
template <bool kSigned>
inline constexpr int kLastCode = (2 << kTop<kSigned>)-1;

template <bool kSigned>
__device__ __forceinline__ const DynamicMap& map() {
  if constexpr (kSigned) {
    return kSignedMap;
  } else {
    return kUnsignedMap;
  }
}

template <bool kSigned>
__device__ __forceinline__ float decode(uint8_t stored, float block_scale) {
  const int code = kSigned ? static_cast<int8_t>(stored) : stored;
  const int magnitude = code < 0 ? -code : code;
  if (magnitude == 0) return 0;
  float fraction = 1;
  if (magnitude < kLastCode<kSigned>) {
    const int e = 31 - __clz(magnitude);
    // magnitude / 2^e
    const float part = __int_as_float(__float_as_int(static_cast<float>(magnitude)) - (e << 23));
    fraction = fmaf(map<kSigned>().scale[e], part, map<kSigned>().offset[e]);
  }
  const float value = fraction * block_scale;
  return code < 0 ? -value : value;
}

// `inverse` is that of the block's scale.
template <bool kSigned>
__device__ __forceinline__ uint8_t encode(float value, float inverse) {
  const DynamicMap& table = map<kSigned>();
  const float scaled = value * inverse;
  const float x = kSigned ? fabsf(scaled) : scaled;
  if (kSigned ? !(x >= table.zero_threshold) : !(x > 0)) return 0;
  int code = kLastCode<kSigned>;
  if (x < table.top_threshold) {
    int e = 0;
#pragma unroll
    for (int i = 1; i <= kTop<kSigned>; ++i) e += x >= table.threshold[i] ? 1 : 0;
    const int first = 1 << e, end = (2 << e) - 1;
    const int last = end < kLastCode<kSigned> ? end : kLastCode<kSigned> - 1;
    code = static_cast<int>(fmaf(x, table.code_scale[e], table.code_offset[e]));
    code = code < first ? first : code > last ? last : code;
  }
  return static_cast<uint8_t>(kSigned && scaled < 0 ? -code : code);
}

// A block's scale from its largest magnitude: below the smallest normal number the reciprocal may
// be infinite, and such a block is zero.
__device__ __forceinline__ float scale_of(float largest) {
  return largest >= 0x1p-126f ? largest : 0;
}

}  // namespace ds::kernels::quantize8
