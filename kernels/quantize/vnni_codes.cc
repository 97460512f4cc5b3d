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

#include "kernels/quantize/avx512_codes-inl.h"
#include "kernels/quantize/code_tile-inl.h"
#include "kernels/quantize/vnni_products-inl.h"

struct VnniOp : Avx512Op<false> {
  static constexpr int64_t kRows = 14;
  static constexpr bool kTiles = false;

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
};

}  // namespace

const CodeKernel& vnni_code_kernel(int64_t piece, bool minima) {
  static constexpr auto kKernels = code_kernels<VnniOp>();
  return kKernels[code_piece_index(piece)][minima ? 1 : 0];
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
