// fp32 products on AMX's bf16 tiles. Each number is the exact sum of three bf16 numbers,
//   x = x1 + x2 + x3,  |x2| <= 2^-8 |x|,  |x3| <= 2^-16 |x|,
// and of the nine products of parts the six largest are summed; what is left out is below 2^-23 of
// |x y|, as little as an fp32 product's own rounding. (Henry, Tang and Heinecke, "Leveraging the
// bfloat16 artificial intelligence datatype for higher-precision computations", arXiv:1904.06376.)
// Six tile instructions do the work of 32 fused multiply-adds each in a third of their time.
//
// Limits: parts below 2^-126 are zero, so numbers below about 2^-110 lose their last bits; and a
// sum that meets an infinity is NaN rather than infinite.
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's own vector operations start from a register that they never read.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <hwy/base.h>
#include <immintrin.h>

#include "kernels/matmul/kernel.h"

HWY_PUSH_ATTRIBUTES("amx-bf16,amx-tile,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace ds::kernels::gemm {
namespace {

constexpr int64_t kRows = 32, kColumns = 32, kGroup = 32;
constexpr int64_t kPart = 2048;       // bytes of one part of a panel per group: two tiles
constexpr int64_t kStep = 3 * kPart;  // of a panel per group
constexpr int64_t kAHalf = 1024;      // to the lower 16 rows
constexpr int64_t kBHalf = 64;        // to the right 16 columns
constexpr int64_t kAStride = 64, kBStride = kColumns * 4;

// Tiles 0 to 3 hold C, 4 and 5 a part of A, 6 and 7 a part of B. The order changes one part at a
// time, and leaves the largest products for the end of the step but one.
void multiply(const MultiplyCall& call) {
  constexpr int64_t kCBytes = kColumns * 4;
  const auto* a_panel = static_cast<const char*>(call.a);
  float* c = call.c;
  for (int64_t block = 0; block < call.blocks; ++block) {
    float* const lower = c + 16 * kColumns;
    if (call.first) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, c, kCBytes);
      _tile_loadd(1, c + 16, kCBytes);
      _tile_loadd(2, lower, kCBytes);
      _tile_loadd(3, lower + 16, kCBytes);
    }
    const char* a = a_panel;
    const auto* b = static_cast<const char*>(call.b);
    for (int64_t k = 0; k < call.depth; k += kGroup, a += kStep, b += kStep) {
      // a3 b1
      _tile_loadd(6, b, kBStride);
      _tile_loadd(4, a + 2 * kPart, kAStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a + 2 * kPart + kAHalf, kAStride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, b + kBHalf, kBStride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
      // a2 b1
      _tile_loadd(4, a + kPart, kAStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kPart + kAHalf, kAStride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      // a2 b2
      _tile_loadd(6, b + kPart, kBStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, b + kPart + kBHalf, kBStride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
      // a1 b2
      _tile_loadd(4, a, kAStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kAHalf, kAStride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      // a1 b3
      _tile_loadd(6, b + 2 * kPart, kBStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, b + 2 * kPart + kBHalf, kBStride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
      // a1 b1
      _tile_loadd(6, b, kBStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, b + kBHalf, kBStride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, kCBytes);
    _tile_stored(1, c + 16, kCBytes);
    _tile_stored(2, lower, kCBytes);
    _tile_stored(3, lower + 16, kCBytes);
    a_panel += call.a_panel;
    c += kRows * kColumns;
  }
}

__mmask16 first_words(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xFFFF)
                 : static_cast<__mmask16>(n <= 0 ? 0 : (1u << n) - 1);
}

// The three parts of 16 numbers, each as fp32 whose lower half is zero.
struct Parts {
  __m512i part[3];
};
Parts split(__m512 x) {
  const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7FFF);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  const auto rounded = [&](__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    return _mm512_and_si512(_mm512_add_epi32(bits, _mm512_add_epi32(odd, half)), upper);
  };
  Parts out;
  const __m512i bits = _mm512_castps_si512(x);
  __m512i first = rounded(x);
  // Towards zero where rounding would leave the range; what is not finite stays as it is.
  const __m512i exponent = _mm512_set1_epi32(0x7F800000);
  const __mmask16 outside = _mm512_cmpeq_epi32_mask(_mm512_and_si512(first, exponent), exponent) |
                            _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  first = _mm512_mask_and_epi32(first, outside, bits, upper);
  first = _mm512_mask_or_epi32(first, nan, first, _mm512_set1_epi32(0x00400000));
  out.part[0] = first;
  __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(first));
  rest = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(rest, rest, _CMP_ORD_Q), rest);
  out.part[1] = rounded(rest);
  rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(out.part[1]));
  out.part[2] = rounded(rest);
  return out;
}

// bf16 of two registers of parts, the first in the lower half.
__m512i narrow(__m512i low, __m512i high) {
  const __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16));
  const __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

// Rows of A along k: 32 numbers of a row become one line of each part.
void pack_a_rows(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  for (int64_t row = 0; row < kRows; ++row) {
    auto* to = static_cast<char*>(call.to) + row * kAStride;
    const float* source = from + row * call.stride;
    for (int64_t k = 0; k < call.depth; k += kGroup, to += kStep) {
      const int64_t left = row < call.width ? call.depth - k : 0;
      const Parts low =
          split(_mm512_maskz_loadu_ps(first_words(left), source + (left > 0 ? k : 0)));
      const Parts high =
          split(_mm512_maskz_loadu_ps(first_words(left - 16), source + (left > 16 ? k + 16 : 0)));
      for (int part = 0; part < 3; ++part) {
        _mm512_storeu_si512(to + part * kPart, narrow(low.part[part], high.part[part]));
      }
    }
  }
}

// The 16 x 16 words of `r` transposed.
void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xDD);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xDD);
  }
}

// Sixteen rows of the source along k as columns: word (pair, column) holds two neighbours of k.
// `lines` of 64 bytes go `line_stride` bytes apart.
struct Square {
  const float* from;
  int64_t stride, rows, depth;  // what exists of 16 x 32
};
void load_pairs(const Square& square, int part, __m512i (&words)[16]) {
  const __mmask16 low = first_words(square.depth), high = first_words(square.depth - 16);
  for (int64_t i = 0; i < 16; ++i) {
    if (i >= square.rows) {
      words[i] = _mm512_setzero_si512();
      continue;
    }
    const float* const row = square.from + i * square.stride;
    const Parts first = split(_mm512_maskz_loadu_ps(low, row));
    const Parts second = split(_mm512_maskz_loadu_ps(high, square.depth > 16 ? row + 16 : row));
    words[i] = narrow(first.part[part], second.part[part]);
  }
}

// B stored along k (a weight's rows): split, then transposed as words of two.
void pack_b_rows(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  for (int64_t k = 0; k < call.depth; k += kGroup) {
    auto* const group = static_cast<char*>(call.to) + k / kGroup * kStep;
    for (int64_t column = 0; column < kColumns; column += 16) {
      const Square square{.from = from + (column < call.width ? column * call.stride : 0) + k,
                          .stride = call.stride,
                          .rows = call.width - column,
                          .depth = call.depth - k};
      for (int part = 0; part < 3; ++part) {
        __m512i words[16];
        load_pairs(square, part, words);
        transpose(words);
        char* const to = group + part * kPart + column * 4;
        for (int64_t pair = 0; pair < 16; ++pair) {
          _mm512_storeu_si512(to + pair * kBStride, words[pair]);
        }
      }
    }
  }
}

// B stored across k: two rows of k interleaved.
void pack_b_columns(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  for (int64_t k = 0; k < call.depth; k += kGroup) {
    auto* const group = static_cast<char*>(call.to) + k / kGroup * kStep;
    for (int64_t pair = 0; pair < 16; ++pair) {
      const int64_t at = k + 2 * pair;
      for (int64_t column = 0; column < kColumns; column += 16) {
        const __mmask16 even = at < call.depth ? first_words(call.width - column) : __mmask16{0};
        const __mmask16 odd = at + 1 < call.depth ? even : __mmask16{0};
        const float* const row = from + (even != 0 ? at * call.stride + column : 0);
        const Parts first = split(_mm512_maskz_loadu_ps(even, row));
        const Parts second = split(_mm512_maskz_loadu_ps(odd, odd != 0 ? row + call.stride : row));
        for (int part = 0; part < 3; ++part) {
          _mm512_storeu_si512(
              group + part * kPart + pair * kBStride + column * 4,
              _mm512_or_si512(_mm512_srli_epi32(first.part[part], 16), second.part[part]));
        }
      }
    }
  }
}

// A stored across k (gradients of weights): 32 rows of k by 16 columns, split and transposed.
void pack_a_columns(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  for (int64_t k = 0; k < call.depth; k += kGroup) {
    auto* const group = static_cast<char*>(call.to) + k / kGroup * kStep;
    for (int64_t row = 0; row < kRows; row += 16) {
      const __mmask16 read = first_words(call.width - row);
      Parts parts[2];
      __m512i words[3][16];
      for (int64_t pair = 0; pair < 16; ++pair) {
        for (int64_t i = 0; i < 2; ++i) {
          const int64_t at = k + 2 * pair + i;
          const __mmask16 mask = at < call.depth ? read : __mmask16{0};
          parts[i] =
              split(_mm512_maskz_loadu_ps(mask, from + (mask != 0 ? at * call.stride + row : 0)));
        }
        for (int part = 0; part < 3; ++part) {
          words[part][pair] =
              _mm512_or_si512(_mm512_srli_epi32(parts[0].part[part], 16), parts[1].part[part]);
        }
      }
      for (int part = 0; part < 3; ++part) {
        transpose(words[part]);
        char* const to = group + part * kPart + row * kAStride;
        for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * kAStride, words[part][i]);
      }
    }
  }
}

}  // namespace

const Kernel& amx_float32_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .group = kGroup,
                                 .depth = 128,
                                 .element_bytes = 4,
                                 .packed_bytes = 6,
                                 .tiles = true,
                                 .a = {pack_a_rows, pack_a_columns},
                                 .b = {pack_b_rows, pack_b_columns},
                                 .multiply = multiply};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
