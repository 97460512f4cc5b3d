// Products of few rows of codes with AVX512-VNNI: a panel of w is read as it lies, and the sums of
// all rows stay in registers. The arithmetic is that of code_tile-inl.h.
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
#include "kernels/quantize/vnni_products-inl.h"

using Op = Avx512Op<false>;
constexpr int64_t kLine = 64;

inline __attribute__((always_inline)) __m512i broadcast_word(const int8_t* codes) {
  int32_t word;
  std::memcpy(&word, codes, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Of sizeof...(kRow) rows.
template <int kBits, bool kMinima, size_t... kRow>
void multiply_rows(std::index_sequence<kRow...>, const FewCodeRows& call) {
  constexpr int32_t kExcess = kBits == 8 ? Op::kExcess8 : kMinima ? 0 : Op::kExcess4;
  constexpr int64_t kBlockBytes = Op::kBlock * kPanelRows * kBits / 8;
  const QuantizedMatrix& w = *call.w;
  const RowCodes& rows = *call.rows;
  const uint8_t* const codes = w.codes + call.panel * w.panel_bytes();
  const bfloat16* const scales = w.scales + call.panel * w.groups() * kPanelRows;
  const bfloat16* const minima =
      kMinima ? w.minimum + call.panel * w.groups() * kPanelRows : nullptr;
  // The panel that follows is fetched meanwhile, its scales too, which lie alone.
  const int64_t ahead = w.panel_bytes(), numbers_ahead = w.groups() * kPanelRows;
  const int64_t row_codes = rows.pieces * rows.piece;
  const auto group_of = [&](int64_t piece) {
    return piece * rows.piece / w.group_length() * kPanelRows;
  };
  const auto place = [&](size_t i, int64_t piece) {
    return static_cast<int64_t>(i) * rows.pieces + piece;
  };
  __m512 c[sizeof...(kRow)] = {(static_cast<void>(kRow), Op::zero())...};
  for (int64_t first = 0; first < rows.pieces;) {
    const int64_t last = call.cut.end_of_step(first * rows.piece, row_codes) / rows.piece;
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t k = piece * rows.piece, group = group_of(piece);
      const int8_t* const x = rows.codes + k;
      __m512i sums[sizeof...(kRow)] = {
          _mm512_set1_epi32(-kExcess * rows.sums[place(kRow, piece)])...};
      const int64_t count = std::min(rows.piece, w.padded_k() - k);
      for (int64_t e = 0; e < count; e += Op::kBlock) {
        const uint8_t* const block = codes + (k + e) / Op::kBlock * kBlockBytes;
        for (int64_t line = 0; line < kBlockBytes; line += kLine) {
          __builtin_prefetch(block + ahead + line);
        }
        const auto words = kBits == 8 ? Op::words_of_8(block) : Op::words_of_4(block, kMinima);
        const auto multiply = [&](size_t i) __attribute__((always_inline)) {
          const int8_t* const from = x + static_cast<int64_t>(i) * row_codes + e;
          add_products(sums[i], words.first, broadcast_word(from));
          add_products(sums[i], words.second, broadcast_word(from + Op::kWord));
        };
        (multiply(kRow), ...);
      }
      __builtin_prefetch(scales + group + numbers_ahead);
      const __m512 scale = Op::widen(scales + group);
      ((c[kRow] = Op::multiply_add(
            _mm512_cvtepi32_ps(sums[kRow]),
            Op::multiply(Op::broadcast(rows.scales[place(kRow, piece)]), scale), c[kRow])),
       ...);
    }
    for (int64_t piece = first; kMinima && piece < last; ++piece) {
      const int64_t group = group_of(piece);
      __builtin_prefetch(minima + group + numbers_ahead);
      const __m512 minimum = Op::widen(minima + group);
      const auto shift = [&](size_t i) __attribute__((always_inline)) {
        const int64_t at = place(i, piece);
        return Op::broadcast(rows.scales[at] * static_cast<float>(rows.sums[at]));
      };
      ((c[kRow] = Op::multiply_add(shift(kRow), minimum, c[kRow])), ...);
    }
    first = last;
  }
  (Op::store(call.sums + static_cast<int64_t>(kRow) * kPanelRows, c[kRow]), ...);
}

template <int kBits, bool kMinima, size_t... kLess>
void multiply_panel(std::index_sequence<kLess...>, const FewCodeRows& call) {
  using Multiply = void (*)(const FewCodeRows&);
  static constexpr Multiply kTable[] = {[](const FewCodeRows& panel) {
    multiply_rows<kBits, kMinima>(std::make_index_sequence<kLess + 1>(), panel);
  }...};
  kTable[call.rows->rows - 1](call);
}

}  // namespace

void vnni_few_rows(const FewCodeRows& call) {
  constexpr std::make_index_sequence<kMostFewCodeRows> kRows;
  call.w->bits == 8 ? multiply_panel<8, false>(kRows, call)
  : call.w->minima  ? multiply_panel<4, true>(kRows, call)
                    : multiply_panel<4, false>(kRows, call);
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
