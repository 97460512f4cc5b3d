// Products of few rows of codes with AVX512-VNNI: the sums of all rows stay in registers.
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's own conversions start from a register that they never read.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/quantize/code_kernel.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace ds::kernels {
namespace {

#include "kernels/quantize/avx512_codes-inl.h"
#include "kernels/quantize/few_rows-inl.h"
#include "kernels/quantize/vnni_products-inl.h"

constexpr int64_t kLine = 64;

inline __attribute__((always_inline)) __m512i broadcast_word(const int8_t* codes) {
  int32_t word;
  std::memcpy(&word, codes, sizeof(word));
  return _mm512_set1_epi32(word);
}

struct VnniFewOp : Avx512Op<false> {
  static constexpr int64_t kRowsAtOnce = kMostFewCodeRows;
  using Panel = __m512;
  static Panel zero_panel() { return zero(); }
  static Panel widen_panel(const bfloat16* p) { return widen(p); }
  static void store_panel(float* p, Panel v) { store(p, v); }
  static Panel add_scaled(Panel sums, float row, Panel columns, Panel c) {
    return multiply_add(sums, multiply(broadcast(row), columns), c);
  }
  static Panel add_shifted(float row, Panel columns, Panel c) {
    return multiply_add(broadcast(row), columns, c);
  }

  template <int kBits, bool kMinima, size_t... kRow, class Finish>
  static inline __attribute__((always_inline)) void few_sums(std::index_sequence<kRow...>,
                                                             const CodePiece& piece,
                                                             const Finish& finish) {
    constexpr int64_t kBlockBytes = kBlock * kPanelRows * kBits / 8;
    __m512i sums[sizeof...(kRow)] = {_mm512_set1_epi32(piece.starts[kRow])...};
    const uint8_t* block = piece.codes;
    for (int64_t e = 0; e < piece.elements; e += kBlock, block += kBlockBytes) {
      for (int64_t line = 0; line < kBlockBytes; line += kLine) {
        __builtin_prefetch(block + piece.ahead + line);
      }
      const auto words = kBits == 8 ? words_of_8(block) : words_of_4(block, kMinima);
      const auto multiply = [&](size_t i) __attribute__((always_inline)) {
        const int8_t* const from = piece.x + static_cast<int64_t>(i) * piece.stride + e;
        add_products(sums[i], words.first, broadcast_word(from));
        add_products(sums[i], words.second, broadcast_word(from + kWord));
      };
      (multiply(kRow), ...);
    }
    (finish(kRow, _mm512_cvtepi32_ps(sums[kRow])), ...);
  }
};

}  // namespace

void vnni_few_rows(const FewCodeRows& call) { multiply_few_rows<VnniFewOp>(call); }

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
