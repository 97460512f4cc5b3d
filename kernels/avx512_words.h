// AVX-512 for words of 32 bits: masks of the first few, and transposing a tile of 16 x 16.
#pragma once

#include <hwy/base.h>
#include <immintrin.h>

#include <cstdint>
#include <limits>

namespace ds::kernels {

// The first n lanes; none below 1, all from their number on.
template <class Mask>
inline Mask first_lanes(int64_t n) {
  constexpr int64_t kLanes = std::numeric_limits<Mask>::digits;
  if (n >= kLanes) return std::numeric_limits<Mask>::max();
  return n <= 0 ? Mask{0} : static_cast<Mask>((uint64_t{1} << n) - 1);
}

}  // namespace ds::kernels

HWY_PUSH_ATTRIBUTES("avx512f")
namespace ds::kernels {

// The 16 x 16 words of r[0..15].
inline void transpose_16x16(__m512i* r) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    const __m512i b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
    const __m512i d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xDD);
    const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xDD);
    r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(a, c, 0xDD);
    r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xDD);
  }
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
