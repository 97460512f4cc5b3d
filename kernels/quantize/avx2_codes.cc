// Products of codes with AVX2: 6 x 16 sums in 12 registers. Codes of 8 bits are widened to 16 while
// they are packed and multiplied in pairs, whose sums are exact in 32 bits. Those of 4 bits stay
// bytes, plus 8 as the unsigned operand of the instruction; 8 sums of two products each, at most
// 8 * 2 * 15 * 127, are exact in 16 bits.
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/quantize/code_kernel.h"

HWY_PUSH_ATTRIBUTES("avx2,fma")
namespace ds::kernels {
namespace {

#include "kernels/avx2_transpose-inl.h"
#include "kernels/quantize/avx2_products-inl.h"
#include "kernels/quantize/code_tile-inl.h"

constexpr int64_t kBlock = 8;  // codes that are in an order of their own: 0, 4, 1, 5, 2, 6, 3, 7

__m256i load_integers(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
void store_integers(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
__m128i load_16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// What both forms of codes share.
struct Avx2Op {
  static constexpr int64_t kRows = 6, kColumns = 16, kLanes = 8;
  static constexpr int64_t kWordBytes = 4;
  static constexpr bool kTiles = false;
  static constexpr int64_t kFewRows = kMostFewCodeRows;
  static constexpr MultiplyFewCodeRows kMultiplyFew = avx2_few_rows;
  static constexpr int32_t kExcess8 = 0, kExcess4 = 8;
  static constexpr int64_t kCacheBytes = 1536 << 10;  // as of fp32 products (avx2_float.cc)
  using Floats = __m256;
  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
  static Floats broadcast(float v) { return _mm256_set1_ps(v); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }
  static Floats widen(const bfloat16* p) {
    const __m256i words = _mm256_cvtepu16_epi32(load_16(reinterpret_cast<const uint8_t*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
  // kWords words of each row of a panel, of which load(row, word) gives eight. What is stored
  // behind the last is where the scales go, which are packed after it.
  template <int64_t kWords, class Load>
  static inline __attribute__((always_inline)) void interleave(int64_t width, const Load& load,
                                                               uint8_t* to) {
    static_assert(kWords % kLanes == 0);
    for (int64_t word = 0; word < kWords; word += kLanes) {
      __m256 r[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        r[i] = i < width ? _mm256_castsi256_ps(load(i, word)) : _mm256_setzero_ps();
      }
      transpose_8x8(r);
      for (int64_t i = 0; i < kLanes; ++i, to += kRows * kWordBytes) {
        store_integers(to, _mm256_castps_si256(r[i]));
      }
    }
  }
};

// A word is two numbers of 16 bits.
struct PairsOp : Avx2Op {
  static constexpr int64_t kCodeBytes = 2;

  template <int64_t kPiece, size_t... kRow, class Finish>
  static inline __attribute__((always_inline)) void sums(std::index_sequence<kRow...>,
                                                         const uint8_t* a, const uint8_t* b,
                                                         const int32_t* /*starts: zero*/,
                                                         const Finish& finish) {
    __m256i left[sizeof...(kRow)], right[sizeof...(kRow)];
    ((left[kRow] = right[kRow] = _mm256_setzero_si256()), ...);
    for (int64_t word = 0; word < kPiece / 2; ++word) {
      const __m256i b0 = load_integers(b), b1 = load_integers(b + kLanes * kWordBytes);
      const auto row = [&](size_t i) __attribute__((always_inline)) {
        add_pairs(left[i], right[i], b0, b1, a + i * kWordBytes);
      };
      (row(kRow), ...);
      a += kRows * kWordBytes;
      b += kColumns * kWordBytes;
    }
    (finish(kRow, _mm256_cvtepi32_ps(left[kRow]), _mm256_cvtepi32_ps(right[kRow])), ...);
  }

  template <int64_t kPiece>
  static void pack_row_codes(const int8_t* codes, int64_t stride, int64_t width, uint8_t* to) {
    const auto load = [&](int64_t i, int64_t word) __attribute__((always_inline)) {
      const int8_t* const from = codes + i * stride + word * 2;
      return _mm256_cvtepi8_epi16(load_16(reinterpret_cast<const uint8_t*>(from)));
    };
    interleave<kPiece / 2>(width, load, to);
  }

  template <int64_t kPiece>
  static void pack_panel_codes(const QuantizedMatrix& w, int64_t index, int64_t k, uint8_t* to,
                               int64_t /*column*/) {
    const uint8_t* const codes = w.codes + index * w.panel_bytes();
    for (int64_t e = 0; e < kPiece; e += kBlock) {
      const bool exists = index >= 0 && k + e < w.padded_k();
      const uint8_t* const block = codes + (k + e) * kPanelRows;
      for (int64_t first = 0; first < kBlock / 2; ++first) {
        __m128i one = _mm_setzero_si128(), other = one;
        if (exists) {
          one = load_16(block + first * kPanelRows);
          other = load_16(block + (first + kBlock / 2) * kPanelRows);
        }
        store_integers(to, _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(one, other)));
        store_integers(to + kLanes * kWordBytes,
                       _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(one, other)));
        to += kColumns * kWordBytes;
      }
    }
  }
};

// A word is four bytes.
struct BytesOp : Avx2Op {
  static constexpr int64_t kCodeBytes = 1;
  static constexpr int64_t kRun = 8;  // words whose sums fit 16 bits

  template <int64_t kPiece, size_t... kRow, class Finish>
  static inline __attribute__((always_inline)) void sums(std::index_sequence<kRow...> rows,
                                                         const uint8_t* a, const uint8_t* b,
                                                         const int32_t* starts,
                                                         const Finish& finish) {
    constexpr int64_t kRuns = kPiece / (kRun * kWordBytes);
    if constexpr (kRuns == 1) {
      run(
          rows, a, b, [&](size_t i, __m256i left, __m256i right) __attribute__((always_inline)) {
            const __m256i start = _mm256_set1_epi32(starts[i]);
            finish(i, _mm256_cvtepi32_ps(_mm256_add_epi32(start, left)),
                   _mm256_cvtepi32_ps(_mm256_add_epi32(start, right)));
          });
    } else {
      alignas(32) int32_t sums[kRows * kColumns];  // as registers are all in use
      ((store_integers(sums + kRow * kColumns, _mm256_set1_epi32(starts[kRow])),
        store_integers(sums + kRow * kColumns + kLanes, _mm256_set1_epi32(starts[kRow]))),
       ...);
#pragma GCC unroll 1
      for (int64_t part = 0; part < kRuns; ++part) {
        run(
            rows, a, b, [&](size_t i, __m256i left, __m256i right) __attribute__((always_inline)) {
              int32_t* const sum = sums + i * kColumns;
              store_integers(sum, _mm256_add_epi32(load_integers(sum), left));
              store_integers(sum + kLanes, _mm256_add_epi32(load_integers(sum + kLanes), right));
            });
        a += kRun * kRows * kWordBytes;
        b += kRun * kColumns * kWordBytes;
      }
      (finish(kRow, _mm256_cvtepi32_ps(load_integers(sums + kRow * kColumns)),
              _mm256_cvtepi32_ps(load_integers(sums + kRow * kColumns + kLanes))),
       ...);
    }
  }

  // take(row, left, right): the sums of a run in 32 bits.
  template <size_t... kRow, class Take>
  static inline __attribute__((always_inline)) void run(std::index_sequence<kRow...>,
                                                        const uint8_t* a, const uint8_t* b,
                                                        const Take& take) {
    __m256i left[sizeof...(kRow)], right[sizeof...(kRow)];
    ((left[kRow] = right[kRow] = _mm256_setzero_si256()), ...);
    for (int64_t word = 0; word < kRun; ++word) {
      const __m256i b0 = load_integers(b), b1 = load_integers(b + kLanes * kWordBytes);
      const auto row = [&](size_t i) __attribute__((always_inline)) {
        add_bytes(left[i], right[i], b0, b1, a + i * kWordBytes);
      };
      (row(kRow), ...);
      a += kRows * kWordBytes;
      b += kColumns * kWordBytes;
    }
    __m256i ones = _mm256_set1_epi16(1);
    asm volatile("" : "+x"(ones));  // not kept in a register of the loop
    (take(kRow, _mm256_madd_epi16(left[kRow], ones), _mm256_madd_epi16(right[kRow], ones)), ...);
  }

  template <int64_t kPiece>
  static void pack_row_codes(const int8_t* codes, int64_t stride, int64_t width, uint8_t* to) {
    const auto load = [&](int64_t i, int64_t word) __attribute__((always_inline)) {
      return load_integers(codes + i * stride + word * kWordBytes);
    };
    interleave<kPiece / kWordBytes>(width, load, to);
  }

  template <int64_t kPiece>
  static void pack_panel_codes(const QuantizedMatrix& w, int64_t index, int64_t k, uint8_t* to,
                               int64_t /*column*/) {
    const uint8_t* const codes = w.codes + index * w.panel_bytes();
    const __m256i low = _mm256_set1_epi8(15);
    for (int64_t e = 0; e < kPiece; e += kBlock) {
      const bool exists = index >= 0 && k + e < w.padded_k();
      const uint8_t* const block = codes + (k + e) * kPanelRows / 2;
      for (int64_t column = 0; column < kColumns; column += kLanes, to += kLanes * kWordBytes) {
        const __m256i all =
            exists ? load_integers(block + column * kWordBytes) : _mm256_setzero_si256();
        store_integers(to, _mm256_and_si256(all, low));
        store_integers(to + kColumns * kWordBytes,
                       _mm256_and_si256(_mm256_srli_epi32(all, 4), low));
      }
      to += kColumns * kWordBytes;
    }
  }
};

}  // namespace

const CodeKernel& avx2_code_kernel(int bits, int64_t piece, bool minima) {
  static constexpr auto kPairs = code_kernels<PairsOp>(), kNibbles = code_kernels<BytesOp>();
  return (bits == 8 ? kPairs : kNibbles)[code_piece_index(piece)][minima ? 1 : 0];
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
