// Products of codes with AVX512-VNNI: 14 x 32 sums in 28 registers. Weights are the unsigned
// operand of the instruction: codes plus 128 of 8 bits, plus 8 of 4. What that adds to a sum is the
// codes of x, summed, times it: sums start at minus that.
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's own conversions start from a register that they never read.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/avx512_words.h"
#include "kernels/quantize/code_kernel.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace ds::kernels {
namespace {

#include "kernels/quantize/code_tile-inl.h"

constexpr int64_t kWord = 4,
                  kBlock = 8;  // codes of a word; those that are in an order of their own

// Eight elements of 16 rows of w as two vectors of words: elements 0, 4, 1, 5 and 2, 6, 3, 7.
struct Words {
  __m512i first, second;
};
Words words_of_4(const uint8_t* codes) {
  const __m512i all = _mm512_loadu_si512(codes), low = _mm512_set1_epi8(15);
  return {_mm512_and_si512(all, low), _mm512_and_si512(_mm512_srli_epi32(all, 4), low)};
}
Words words_of_8(const uint8_t* codes) {
  const __m512i a = _mm512_loadu_si512(codes), b = _mm512_loadu_si512(codes + 64);
  // Lane q receives the bytes of rows 4 q to 4 q + 3, element by element, and turns them around.
  const __m512i begin = _mm512_setr_epi32(0, 16, 4, 20, 1, 17, 5, 21, 2, 18, 6, 22, 3, 19, 7, 23);
  const __m512i turn =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i sign = _mm512_set1_epi8(-128);
  const auto make = [&](__m512i from) __attribute__((always_inline)) {
    return _mm512_xor_si512(_mm512_shuffle_epi8(_mm512_permutex2var_epi32(a, from, b), turn), sign);
  };
  return {make(begin), make(_mm512_add_epi32(begin, _mm512_set1_epi32(8)))};
}

// sum + the products of four codes of w, unsigned, and four of x. gcc 12 moves sums to memory and
// back around its own intrinsic, which takes more than twice as long.
inline __attribute__((always_inline)) void add_products(__m512i& sum, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

struct VnniOp {
  static constexpr int64_t kRows = 14, kColumns = 32, kLanes = 16;
  static constexpr int64_t kCodeBytes = 1;
  static constexpr int32_t kExcess8 = 128;
  static constexpr int64_t kCacheBytes = gemm::Kernel().cache_bytes;
  using Floats = __m512;
  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  static Floats broadcast(float v) { return _mm512_set1_ps(v); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }
  static Floats widen(const bfloat16* p) {
    const __m512i words =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }

  template <int64_t kPiece, size_t... kRow, class Finish>
  static inline __attribute__((always_inline)) void sums(std::index_sequence<kRow...>,
                                                         const uint8_t* a, const uint8_t* b,
                                                         const int32_t* starts,
                                                         const Finish& finish) {
    __m512i left[sizeof...(kRow)], right[sizeof...(kRow)];
    ((left[kRow] = right[kRow] = _mm512_set1_epi32(starts[kRow])), ...);
    for (int64_t word = 0; word < kPiece / kWord; ++word) {
      const __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + kLanes * kWord);
      const auto row = [&](size_t i) __attribute__((always_inline)) {
        const __m512i x = _mm512_set1_epi32(reinterpret_cast<const int32_t*>(a)[i]);
        add_products(left[i], b0, x);
        add_products(right[i], b1, x);
      };
      (row(kRow), ...);
      a += kRows * kWord;
      b += kColumns * kWord;
    }
    (finish(kRow, _mm512_cvtepi32_ps(left[kRow]), _mm512_cvtepi32_ps(right[kRow])), ...);
  }

  template <int64_t kPiece>
  static void pack_row_codes(const int8_t* codes, int64_t stride, int64_t width, uint8_t* to) {
#pragma GCC unroll 1
    for (int64_t word = 0; word < kPiece / kWord; word += kLanes) {
      __m512i r[kLanes] = {};
      for (int64_t i = 0; i < width; ++i) {
        r[i] = _mm512_maskz_loadu_epi32(first_lanes<__mmask16>(kPiece / kWord - word),
                                        codes + i * stride + word * kWord);
      }
      transpose_16x16(r);
      for (int64_t w = 0; w < kLanes && word + w < kPiece / kWord; ++w) {
        _mm512_mask_storeu_epi32(to + (word + w) * kRows * kWord, first_lanes<__mmask16>(kRows),
                                 r[w]);
      }
    }
  }

  template <int64_t kPiece>
  static void pack_panel_codes(const QuantizedMatrix& w, int64_t index, int64_t k, uint8_t* to,
                               int64_t column) {
    const uint8_t* const codes = w.codes + index * w.panel_bytes();
    for (int64_t e = 0; e < kPiece; e += kBlock) {
      Words words{_mm512_setzero_si512(), _mm512_setzero_si512()};
      if (index >= 0 && k + e < w.padded_k()) {
        const uint8_t* const block = codes + (k + e) * kPanelRows * w.bits / 8;
        words = w.bits == 8 ? words_of_8(block) : words_of_4(block);
      }
      uint8_t* const out = to + (e * kColumns + column * kWord);
      _mm512_storeu_si512(out, words.first);
      _mm512_storeu_si512(out + kColumns * kWord, words.second);
    }
  }
};

}  // namespace

const CodeKernel& vnni_code_kernel(int64_t piece, bool minima) {
  static constexpr CodeKernel kernels[2][2] = {
      {CodeTile<VnniOp, 32>::kernel<false>(), CodeTile<VnniOp, 32>::kernel<true>()},
      {CodeTile<VnniOp, 64>::kernel<false>(), CodeTile<VnniOp, 64>::kernel<true>()}};
  return kernels[piece == 64 ? 1 : 0][minima ? 1 : 0];
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
