// fp32 products on AMX's bf16 tiles. Each number is the exact sum of three bf16 numbers,
//   x = x1 + x2 + x3,  |x2| < 2^-7 |x|,  |x3| < 2^-15 |x|,
// and of the nine products of parts the six largest are summed; what is left out is below 2^-21 of
// |x y|, on average 2^-24, as little as an fp32 product's own rounding. (Henry, Tang and Heinecke,
// "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations",
// arXiv:1904.06376.) Six tile instructions do the work of 32 fused multiply-adds each in a third of
// their time.
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

#include "kernels/avx512_words.h"
#include "kernels/matmul/amx_blocks.h"

namespace ds::kernels::gemm {
namespace {

constexpr int64_t kPart = 2048;       // bytes of one part of a panel per group: two tiles
constexpr int64_t kStep = 3 * kPart;  // of a panel per group
constexpr int64_t kAHalf = 1024;      // to the lower 16 rows
constexpr int64_t kBHalf = 64;        // to the right 16 columns
constexpr int64_t kAStride = 64, kBStride = kTileColumns * 4;

// The order changes one part at a time, and leaves the largest products for the end of the step but
// one.
struct Steps {
  static constexpr int64_t kGroup = 32;
  static constexpr int64_t a_step = kStep, b_step = kStep;

  template <int kSum, int kLeft, int kRight>
  static __attribute__((always_inline)) void multiply() {
    amx::BFloat16Product::add<kSum, kLeft, kRight>();
  }
  // With another part of A, whose halves go to tiles 4 and 5.
  static __attribute__((always_inline)) void change_a(const char* a) {
    amx::load<4>(a, kAStride);
    amx::load<5>(a + kAHalf, kAStride);
    multiply<0, 4, 6>();
    multiply<1, 4, 7>();
    multiply<2, 5, 6>();
    multiply<3, 5, 7>();
  }
  // With another part of B, in tiles 6 and 7.
  static __attribute__((always_inline)) void change_b(const char* b) {
    amx::load<6>(b, kBStride);
    amx::load<7>(b + kBHalf, kBStride);
    multiply<0, 4, 6>();
    multiply<2, 5, 6>();
    multiply<1, 4, 7>();
    multiply<3, 5, 7>();
  }
  __attribute__((always_inline)) void add(const char* a, const char* b) const {
    amx::load_and_add_product<amx::BFloat16Product, amx::Kept::kBoth>(
        {a + 2 * kPart, a + 2 * kPart + kAHalf, kAStride}, {b, b + kBHalf, kBStride});  // a3 b1
    change_a(a + kPart);                                                                // a2 b1
    change_b(b + kPart);                                                                // a2 b2
    change_a(a);                                                                        // a1 b2
    change_b(b + 2 * kPart);                                                            // a1 b3
    change_b(b);                                                                        // a1 b1
  }
};
constexpr int64_t kGroup = Steps::kGroup;

void multiply(const MultiplyCall& call) { multiply_on_tiles(call, Steps()); }

}  // namespace
}  // namespace ds::kernels::gemm

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace ds::kernels::gemm {
namespace {

// What is left of 16 numbers when their upper halves, as bf16, are taken away. Cutting off rather
// than rounding keeps every remainder exact and never leaves the range.
__m512i upper_halves() { return _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)); }
__m512 remainder(__m512 x) {
  const __m512i upper = _mm512_and_si512(_mm512_castps_si512(x), upper_halves());
  return _mm512_sub_ps(x, _mm512_castsi512_ps(upper));
}

// The upper halves of two registers, the first in the lower half of the result.
__m512i gather_upper(__m512 low, __m512 high) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                    23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                    45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(_mm512_castps_si512(low), _mm512_load_si512(kOdd),
                                   _mm512_castps_si512(high));
}

// Words whose lower half is the upper half of `even`, and the upper that of `odd`.
__m512i pair_upper(__m512 even, __m512 odd) {
  constexpr int kAOrBandC = 0xF8;
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                   _mm512_castps_si512(odd), upper_halves(), kAOrBandC);
}

// The pieces of rows that packing reads are too short for the hardware to fetch ahead; addresses
// beyond the operand do no harm.
void fetch(const float* place) {
  _mm_prefetch(reinterpret_cast<const char*>(place), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(place + 16), _MM_HINT_T0);
}

// Rows of A along k: 32 numbers of a row become one line of each part.
void pack_a_rows(const PackCall& call) {
  constexpr int64_t kAhead = 8;  // rows
  const auto* from = static_cast<const float*>(call.from);
  for (int64_t row = 0; row < kTileRows; ++row) {
    auto* to = static_cast<char*>(call.to) + row * kAStride;
    const float* source = from + (row < call.width ? row * call.stride : 0);
    for (int64_t k = 0; k < call.depth; k += kGroup, to += kStep) {
      const int64_t left = row < call.width ? call.depth - k : 0;
      fetch(source + kAhead * call.stride + k);
      __m512 low = _mm512_maskz_loadu_ps(first_lanes<__mmask16>(left), source + k);
      __m512 high = _mm512_maskz_loadu_ps(first_lanes<__mmask16>(left - 16),
                                          source + (left > 16 ? k + 16 : 0));
      _mm512_storeu_si512(to, gather_upper(low, high));
      low = remainder(low);
      high = remainder(high);
      _mm512_storeu_si512(to + kPart, gather_upper(low, high));
      _mm512_storeu_si512(to + 2 * kPart, gather_upper(remainder(low), remainder(high)));
    }
  }
}

// B stored along k (a weight's rows): split, then transposed as words of two.
void pack_b_rows(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  for (int64_t k = 0; k < call.depth; k += kGroup) {
    auto* const group = static_cast<char*>(call.to) + k / kGroup * kStep;
    for (int64_t column = 0; column < kTileColumns; column += 16) {
      __m512i words[3][16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t left = column + i < call.width ? call.depth - k : 0;
        const float* const row = from + (left > 0 ? (column + i) * call.stride + k : 0);
        __m512 low = _mm512_maskz_loadu_ps(first_lanes<__mmask16>(left), row);
        __m512 high =
            _mm512_maskz_loadu_ps(first_lanes<__mmask16>(left - 16), left > 16 ? row + 16 : row);
        words[0][i] = gather_upper(low, high);
        low = remainder(low);
        high = remainder(high);
        words[1][i] = gather_upper(low, high);
        words[2][i] = gather_upper(remainder(low), remainder(high));
      }
      for (int part = 0; part < 3; ++part) {
        transpose_16x16(words[part]);
        char* const to = group + part * kPart + column * 4;
        for (int64_t pair = 0; pair < 16; ++pair) {
          _mm512_storeu_si512(to + pair * kBStride, words[part][pair]);
        }
      }
    }
  }
}

// B stored across k: two rows of k interleaved.
void pack_b_columns(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  for (int64_t k = 0; k < call.depth; k += 2) {
    auto* const to = static_cast<char*>(call.to) + k / kGroup * kStep + k % kGroup / 2 * kBStride;
    const float* const row = from + k * call.stride;
    for (int64_t column = 0; column < kTileColumns; column += 16) {
      const __mmask16 first = first_lanes<__mmask16>(call.width - column);
      const __mmask16 second = k + 1 < call.depth ? first : __mmask16{0};
      const float* const place = first != 0 ? row + column : row;
      __m512 even = _mm512_maskz_loadu_ps(first, place);
      __m512 odd = _mm512_maskz_loadu_ps(second, second != 0 ? place + call.stride : place);
      _mm512_storeu_si512(to + column * 4, pair_upper(even, odd));
      even = remainder(even);
      odd = remainder(odd);
      _mm512_storeu_si512(to + kPart + column * 4, pair_upper(even, odd));
      _mm512_storeu_si512(to + 2 * kPart + column * 4, pair_upper(remainder(even), remainder(odd)));
    }
  }
  for (int64_t k = (call.depth + 1) / 2 * 2; k % kGroup != 0; k += 2) {
    auto* const to = static_cast<char*>(call.to) + k / kGroup * kStep + k % kGroup / 2 * kBStride;
    for (int part = 0; part < 3; ++part) {
      _mm512_storeu_si512(to + part * kPart, _mm512_setzero_si512());
      _mm512_storeu_si512(to + part * kPart + 64, _mm512_setzero_si512());
    }
  }
}

// A stored across k (gradients of weights): pairs of k of 16 columns, then transposed.
void pack_a_columns(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  for (int64_t k = 0; k < call.depth; k += kGroup) {
    auto* const group = static_cast<char*>(call.to) + k / kGroup * kStep;
    for (int64_t row = 0; row < kTileRows; row += 16) {
      const __mmask16 read = first_lanes<__mmask16>(call.width - row);
      __m512i words[3][16];
      for (int64_t pair = 0; pair < 16; ++pair) {
        const int64_t at = k + 2 * pair;
        const __mmask16 first = at < call.depth ? read : __mmask16{0};
        const __mmask16 second = at + 1 < call.depth ? read : __mmask16{0};
        const float* const place = from + (first != 0 ? at * call.stride + row : 0);
        if (row == 0) {  // of the next panel
          fetch(place + kTileRows);
          fetch(place + call.stride + kTileRows);
        }
        __m512 even = _mm512_maskz_loadu_ps(first, place);
        __m512 odd = _mm512_maskz_loadu_ps(second, second != 0 ? place + call.stride : place);
        words[0][pair] = pair_upper(even, odd);
        even = remainder(even);
        odd = remainder(odd);
        words[1][pair] = pair_upper(even, odd);
        words[2][pair] = pair_upper(remainder(even), remainder(odd));
      }
      for (int part = 0; part < 3; ++part) {
        transpose_16x16(words[part]);
        char* const to = group + part * kPart + row * kAStride;
        for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * kAStride, words[part][i]);
      }
    }
  }
}

}  // namespace

const Kernel& amx_float32_kernel() {
  static constexpr Kernel kernel{.rows = kTileRows,
                                 .columns = kTileColumns,
                                 .group = kGroup,
                                 .depth = 128,
                                 .element_bytes = 4,
                                 .packed_bytes = 6,
                                 .cache_bytes = 1280 << 10,
                                 .round_depth = 768,
                                 .tile_bytes = 64,
                                 .whole_depth_along = true,
                                 .packs_a_once_from = 3,
                                 .fetches_results = true,
                                 .a = {pack_a_rows, pack_a_columns},
                                 .b = {pack_b_rows, pack_b_columns},
                                 .multiply = multiply};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
