// Products of few rows of codes with AVX2, the sums of four rows at a time in registers. Codes of 8
// bits are multiplied as their sizes, without a sign, by codes of x that have it: two products, at
// most 2 * 128 * 127, are exact in 16 bits. Those of 4 bits are the unsigned operand as they are,
// plus 8 without minima; 8 sums of two products each, at most 8 * 2 * 15 * 127, are exact, too.
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/quantize/code_kernel.h"

HWY_PUSH_ATTRIBUTES("avx2,fma")
namespace ds::kernels {
namespace {

#include "kernels/quantize/avx2_products-inl.h"
#include "kernels/quantize/few_rows-inl.h"

constexpr int64_t kLine = 64, kBlock = 8, kWord = 4;

inline __attribute__((always_inline)) __m256i load_codes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Of two halves of a panel, or in whatever order of its rows.
struct TwoVectors {
  __m256i left, right;
};

// Words of four elements of 16 rows: those of rows 0 to 3 and 8 to 11, and the others. The
// arguments hold elements 0 and 1, and 4 and 5 (or 2, 3 and 6, 7).
inline __attribute__((always_inline)) TwoVectors words_of_8(__m256i even, __m256i odd) {
  const __m256i low = _mm256_unpacklo_epi8(even, odd), high = _mm256_unpackhi_epi8(even, odd);
  const __m256i first = _mm256_permute2x128_si256(low, high, 0x20),
                second = _mm256_permute2x128_si256(low, high, 0x31);
  return {_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second)};
}

struct Avx2FewOp {
  static constexpr int64_t kRowsAtOnce = 4;
  static constexpr int32_t kExcess8 = 0, kExcess4 = 8;
  struct Panel {
    __m256 left, right;
  };
  static Panel zero_panel() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static __m256 widen(const bfloat16* p) {
    const __m256i words =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
  static Panel widen_panel(const bfloat16* p) { return {widen(p), widen(p + kPanelRows / 2)}; }
  static void store_panel(float* p, Panel v) {
    _mm256_storeu_ps(p, v.left);
    _mm256_storeu_ps(p + kPanelRows / 2, v.right);
  }
  static Panel add_scaled(Panel sums, float row, Panel columns, Panel c) {
    const __m256 scale = _mm256_set1_ps(row);
    return {_mm256_fmadd_ps(sums.left, _mm256_mul_ps(scale, columns.left), c.left),
            _mm256_fmadd_ps(sums.right, _mm256_mul_ps(scale, columns.right), c.right)};
  }
  static Panel add_shifted(float row, Panel columns, Panel c) {
    const __m256 shift = _mm256_set1_ps(row);
    return {_mm256_fmadd_ps(shift, columns.left, c.left),
            _mm256_fmadd_ps(shift, columns.right, c.right)};
  }

  template <int kBits, bool kMinima, size_t... kRow, class Finish>
  static inline __attribute__((always_inline)) void few_sums(std::index_sequence<kRow...> rows,
                                                             const CodePiece& piece,
                                                             const Finish& finish) {
    TwoVectors sums[sizeof...(kRow)];
    const auto start = [&](size_t i) __attribute__((always_inline)) {
      sums[i].left = sums[i].right = _mm256_set1_epi32(piece.starts[i]);
    };
    (start(kRow), ...);
    kBits == 8 ? add_bytes_of(rows, piece, sums) : add_nibbles_of(rows, piece, sums);
    const auto end = [&](size_t i) __attribute__((always_inline)) {
      TwoVectors s = sums[i];
      if constexpr (kBits == 8) {
        s = {_mm256_permute2x128_si256(sums[i].left, sums[i].right, 0x20),
             _mm256_permute2x128_si256(sums[i].left, sums[i].right, 0x31)};
      }
      finish(i, {_mm256_cvtepi32_ps(s.left), _mm256_cvtepi32_ps(s.right)});
    };
    (end(kRow), ...);
  }

  static inline __attribute__((always_inline)) __m256i broadcast_word(const int8_t* codes) {
    int32_t word;
    std::memcpy(&word, codes, sizeof(word));
    return _mm256_set1_epi32(word);
  }

  // Codes of 8 bits, into sums in the order of words_of_8.
  template <size_t... kRow>
  static inline __attribute__((always_inline)) void add_bytes_of(std::index_sequence<kRow...>,
                                                                 const CodePiece& piece,
                                                                 TwoVectors* sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    const uint8_t* block = piece.codes;
    const int8_t* x = piece.x;
    constexpr int64_t kBlockBytes = kBlock * kPanelRows, kVector = 2 * kPanelRows;
    for (int64_t e = 0; e < piece.elements; e += kBlock, block += kBlockBytes, x += kBlock) {
      __builtin_prefetch(block + piece.ahead);
      __builtin_prefetch(block + piece.ahead + kLine);
      for (int64_t half = 0; half < 2; ++half) {
        const TwoVectors w = words_of_8(load_codes(block + half * kVector),
                                        load_codes(block + (half + 2) * kVector));
        const __m256i left = _mm256_abs_epi8(w.left), right = _mm256_abs_epi8(w.right);
        const auto add = [&](size_t i) __attribute__((always_inline)) {
          const __m256i word =
              broadcast_word(x + static_cast<int64_t>(i) * piece.stride + half * kWord);
          const auto products = [&](__m256i size, __m256i sign) __attribute__((always_inline)) {
            return _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(word, sign)),
                                     ones);
          };
          sums[i].left = _mm256_add_epi32(sums[i].left, products(left, w.left));
          sums[i].right = _mm256_add_epi32(sums[i].right, products(right, w.right));
        };
        (add(kRow), ...);
      }
    }
  }

  // Codes of 4 bits, in runs of elements whose sums fit 16 bits.
  template <size_t... kRow>
  static inline __attribute__((always_inline)) void add_nibbles_of(std::index_sequence<kRow...>,
                                                                   const CodePiece& piece,
                                                                   TwoVectors* sums) {
    constexpr int64_t kRun = 4 * kBlock, kBlockBytes = kBlock * kPanelRows / 2, kVector = 32;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const uint8_t* block = piece.codes;
    for (int64_t run = 0; run < piece.elements; run += kRun) {
      TwoVectors parts[sizeof...(kRow)];
      ((parts[kRow].left = parts[kRow].right = _mm256_setzero_si256()), ...);
      const int64_t end = std::min(run + kRun, piece.elements);
      for (int64_t e = run; e < end; e += kBlock, block += kBlockBytes) {
        __builtin_prefetch(block + piece.ahead);
        const __m256i left = load_codes(block), right = load_codes(block + kVector);
        const auto add = [&](__m256i l, __m256i r, int64_t word) __attribute__((always_inline)) {
          const auto row = [&](size_t i) __attribute__((always_inline)) {
            const int8_t* const from = piece.x + static_cast<int64_t>(i) * piece.stride + e;
            add_bytes(parts[i].left, parts[i].right, l, r,
                      reinterpret_cast<const uint8_t*>(from + word));
          };
          (row(kRow), ...);
        };
        add(_mm256_and_si256(left, low), _mm256_and_si256(right, low), 0);
        add(_mm256_and_si256(_mm256_srli_epi32(left, 4), low),
            _mm256_and_si256(_mm256_srli_epi32(right, 4), low), kWord);
      }
      const auto widen = [&](size_t i) __attribute__((always_inline)) {
        sums[i].left = _mm256_add_epi32(sums[i].left, _mm256_madd_epi16(parts[i].left, ones));
        sums[i].right = _mm256_add_epi32(sums[i].right, _mm256_madd_epi16(parts[i].right, ones));
      };
      (widen(kRow), ...);
    }
  }
};

}  // namespace

void avx2_few_rows(const FewCodeRows& call) { multiply_few_rows<Avx2FewOp>(call); }

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
