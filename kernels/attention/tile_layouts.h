// Layouts of bf16 tiles for attention, and what works on their rows. Included only by files whose
// functions run where tile_unit() of tiles.h says so; everything below the includes is compiled for
// AVX-512 with its bf16 conversions.
//
// bf16 values are one part. fp32 values are three: the upper 8 significant bits, the next 8 and the
// last 8, an exact sum; a product of two such numbers takes the six largest of its nine partial
// products and so loses at most 3 * 2^-24 of its magnitude, as much as fp32 rounding does. Sums are
// fp32. Tiles and conversions flush subnormal numbers to 0, and splitting turns infinities into
// NaN.
//
// A tile is 16 rows of 64 bytes. In a product the left one holds 16 rows of 32 terms, the right one
// 16 pairs of terms for each of 16 columns, the result 16 x 16 sums.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "base/bfloat16.h"
#include "kernels/avx512_words.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace ds::kernels::tile {

inline constexpr int64_t kSide = 16;         // rows of a tile, columns of a result
inline constexpr int64_t kTerms = 32;        // terms of one product
inline constexpr int64_t kTile = 16 * 32;    // bf16 elements of a tile
inline constexpr int64_t kResult = 16 * 16;  // fp32 elements of a tile

template <class T>
inline constexpr int kParts = std::is_same_v<T, float> ? 3 : 1;

// ---- rows of 32 bf16 elements ----

// 32 fp32 numbers to bf16: rounded to nearest even as one part, exactly as three.
template <int kNumber>
inline void split(__m512 low, __m512 high, __m512i* part) {
  if constexpr (kNumber == 1) {
    part[0] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  } else {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    for (int i = 0; i < kNumber; ++i) {
      const __m512 a = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(low), upper));
      const __m512 b = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(high), upper));
      part[i] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
      low = _mm512_sub_ps(low, a);
      high = _mm512_sub_ps(high, b);
    }
  }
}

// Where rows lie: evenly apart.
template <class T>
struct EvenRows {
  using Type = T;
  const T* data;
  int64_t stride;
  const T* at(int64_t row) const { return data + row * stride; }
};

// Rows of a matrix, which lie where `place` says. Those at or beyond `rows`, those that the mask
// hides, and channels beyond `dim` read as zeros, and nothing there is touched.
template <class Place>
struct RowsAt {
  using T = typename Place::Type;
  Place place;
  int64_t rows, dim;
  const uint8_t* mask = nullptr;  // of the rows, or null
  bool negative = false;          // read as -x

  // Strides are too long for the hardware to see what comes next.
  void prefetch(int64_t row) const {
    if (row >= rows) return;
    const char* from = reinterpret_cast<const char*>(place.at(row));
    const int64_t bytes = dim * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(from + i, _MM_HINT_T0);
  }

  // Channels [d, d + 32) of a row.
  void read(int64_t row, int64_t d, __m512i* part) const {
    if (row >= rows || (mask != nullptr && mask[row] == 0)) {
      for (int i = 0; i < kParts<T>; ++i) part[i] = _mm512_setzero_si512();
      return;
    }
    const uint32_t bits = first_lanes<uint32_t>(dim - d);
    const T* from = place.at(row) + d;
    if constexpr (std::is_same_v<T, float>) {
      split<kParts<T>>(_mm512_maskz_loadu_ps(static_cast<__mmask16>(bits), from),
                       _mm512_maskz_loadu_ps(static_cast<__mmask16>(bits >> 16), from + 16), part);
    } else {
      part[0] = _mm512_maskz_loadu_epi16(bits, from);
    }
    if (!negative) return;
    for (int i = 0; i < kParts<T>; ++i) {
      part[i] = _mm512_xor_si512(part[i], _mm512_set1_epi16(static_cast<int16_t>(0x8000u)));
    }
  }
};
template <class T>
using Rows = RowsAt<EvenRows<T>>;

// Transposes a tile of 32-bit words.
inline void transpose_tile(const void* from, void* to) {
  __m512i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(static_cast<const __m512i*>(from) + i);
  transpose_16x16(r);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(static_cast<__m512i*>(to) + i, r[i]);
}

// ---- layouts; a tile's parts lie in a row ----

inline constexpr int64_t kAhead = 16;  // rows of prefetch

// Left tiles [row / 16][channel / 32] of rows x channels.
template <class Place>
inline void pack_left(const RowsAt<Place>& from, int64_t rows, int64_t channels, uint16_t* to) {
  constexpr int kN = kParts<typename Place::Type>;
  __m512i part[kN];
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t* tile = to + row / kSide * (channels / kTerms) * kN * kTile + row % kSide * kTerms;
    for (int64_t d = 0; d < channels; d += kTerms, tile += kN * kTile) {
      from.read(row, d, part);
      for (int i = 0; i < kN; ++i) _mm512_store_si512(tile + i * kTile, part[i]);
    }
  }
}

// Right tiles [row / 16][channel / 32] whose columns are rows and whose terms are channels.
template <class Place>
inline void pack_right(const RowsAt<Place>& from, int64_t rows, int64_t channels, uint16_t* to) {
  constexpr int kN = kParts<typename Place::Type>;
  __m512i part[kN][16], read[kN];
  for (int64_t row = 0; row < rows; row += kSide) {
    for (int64_t r = 0; r < kSide; ++r) from.prefetch(row + kAhead + r);
    for (int64_t d = 0; d < channels; d += kTerms) {
      for (int r = 0; r < 16; ++r) {
        from.read(row + r, d, read);
        for (int i = 0; i < kN; ++i) part[i][r] = read[i];
      }
      for (int i = 0; i < kN; ++i, to += kTile) {
        transpose_16x16(part[i]);
        for (int r = 0; r < 16; ++r) _mm512_store_si512(to + r * kTerms, part[i][r]);
      }
    }
  }
}

// Right tiles [row / 32][channel / 16] whose columns are channels and whose terms are rows.
template <class Place>
inline void pack_pairs(const RowsAt<Place>& from, int64_t rows, int64_t channels, uint16_t* to) {
  constexpr int kN = kParts<typename Place::Type>;
  // Words of the first 16 channels to the lower half of each 128 bits, the others to the upper.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  __m512i even[kN], odd[kN];
  for (int64_t row = 0; row < rows; row += 2) {
    from.prefetch(row + kAhead);
    from.prefetch(row + kAhead + 1);
    uint16_t* tile =
        to + row / kTerms * (channels / kSide) * kN * kTile + row % kTerms / 2 * kTerms;
    for (int64_t d = 0; d < channels; d += 32, tile += 2 * kN * kTile) {
      from.read(row, d, even);
      from.read(row + 1, d, odd);
      for (int i = 0; i < kN; ++i) {
        const __m512i a = _mm512_permutexvar_epi64(order, even[i]);
        const __m512i b = _mm512_permutexvar_epi64(order, odd[i]);
        _mm512_store_si512(tile + i * kTile, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(tile + (kN + i) * kTile, _mm512_unpackhi_epi16(a, b));
      }
    }
  }
}

// ---- arithmetic of rows of 16 ----

inline __m512 constant(float value) { return _mm512_set1_ps(value); }

// 2^x, 0 where x < -126, NaN at NaN. For bf16 within 1.1e-4 (2^-13.2) and exact at integers; for
// fp32 within 2 ulp.
template <int kNumber>
inline __m512 exp2(__m512 x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x, constant(-126.0f), _CMP_NLT_UQ);
  if constexpr (kNumber == 1) {
    // Minimax fit on [0, 1] that is 1 at 0 and 2 at 1, of the part of x above its floor.
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 y = _mm512_fmadd_ps(constant(0.0782679701f), r, constant(0.226307682f));
    y = _mm512_fmadd_ps(y, r, constant(0.695424348f));
    y = _mm512_fmadd_ps(y, r, constant(1.0f));
    return _mm512_maskz_scalef_ps(normal, y, x);
  } else {
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, whole);
    __m512 y = constant(0.000158494411f);  // as in softmax-inl.h
    y = _mm512_fmadd_ps(y, r, constant(0.00134193187f));
    y = _mm512_fmadd_ps(y, r, constant(0.00961702596f));
    y = _mm512_fmadd_ps(y, r, constant(0.0555027276f));
    y = _mm512_fmadd_ps(y, r, constant(0.240226552f));
    y = _mm512_fmadd_ps(y, r, constant(0.693147242f));
    y = _mm512_fmadd_ps(y, r, constant(1.0f));
    return _mm512_maskz_scalef_ps(normal, y, whole);
  }
}

// The natural logarithm of normal numbers within 3 ulp, and of infinity; NaN at NaN.
inline __m512 log(__m512 x) {
  const __m512 one = constant(1.0f);
  const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  const __m512 power = _mm512_getexp_ps(_mm512_div_ps(x, m));
  // log m = 2 artanh s, |s| <= 1/5: the first term left out is below 4e-9.
  const __m512 s = _mm512_div_ps(_mm512_sub_ps(m, one), _mm512_add_ps(m, one));
  const __m512 z = _mm512_mul_ps(s, s);
  __m512 y = constant(2.0f / 9);
  y = _mm512_fmadd_ps(y, z, constant(2.0f / 7));
  y = _mm512_fmadd_ps(y, z, constant(2.0f / 5));
  y = _mm512_fmadd_ps(y, z, constant(2.0f / 3));
  y = _mm512_fmadd_ps(y, z, constant(2.0f));
  return _mm512_fmadd_ps(power, constant(0.693147180559945309f), _mm512_mul_ps(y, s));
}

// Lane r of the result combines the 16 lanes of row r.
template <class Combine>
inline __m512 combine_rows(const float* rows, const Combine& combine) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = _mm512_load_ps(rows + 16 * i);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = combine(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44),
                   _mm512_shuffle_f32x4(v[i], v[i + 8], 0xEE));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = combine(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x88),
                   _mm512_shuffle_f32x4(v[i], v[i + 4], 0xDD));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    v[i] =
        combine(_mm512_shuffle_ps(v[i], v[i + 2], 0x44), _mm512_shuffle_ps(v[i], v[i + 2], 0xEE));
  }
  const __m512 all =
      combine(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xDD));
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_ps(order, all);
}
// Not lambdas: gcc gives their conversion to a function pointer no target.
struct Larger {
  __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
};
struct Sum {
  __m512 operator()(__m512 a, __m512 b) const { return _mm512_add_ps(a, b); }
};
inline __m512 row_maxima(const float* rows) { return combine_rows(rows, Larger()); }
inline __m512 row_sums(const float* rows) { return combine_rows(rows, Sum()); }

// The first n <= 32 of 32 numbers.
inline void store_row(__m512 low, __m512 high, int64_t n, bfloat16* to) {
  _mm512_mask_storeu_epi16(to, first_lanes<uint32_t>(n),
                           reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}
inline void store_row(__m512 low, __m512 high, int64_t n, float* to) {
  const uint32_t bits = first_lanes<uint32_t>(n);
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>(bits), low);
  _mm512_mask_storeu_ps(to + 16, static_cast<__mmask16>(bits >> 16), high);
}

}  // namespace ds::kernels::tile

#pragma GCC pop_options
