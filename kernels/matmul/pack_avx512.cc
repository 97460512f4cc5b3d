// Vector code of pack_avx512.h.
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's own shuffles start from a register that they never read.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/matmul/pack_avx512.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/avx512_words.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl")
namespace ds::kernels::gemm {
namespace {

constexpr int64_t kLine = 64;

// Stands in for rows that do not exist.
alignas(64) constexpr uint8_t kZeros[kLine] = {};

// Four 128-bit pieces from four rows, one per lane. Inserting from memory leaves the shuffle unit,
// which limits transpositions, half of its work.
__m512i lanes(const uint8_t* r0, const uint8_t* r1, const uint8_t* r2, const uint8_t* r3) {
  const auto load = [](const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  __m512i v = _mm512_castsi128_si512(load(r0));
  v = _mm512_inserti32x4(v, load(r1), 1);
  v = _mm512_inserti32x4(v, load(r2), 2);
  return _mm512_inserti32x4(v, load(r3), 3);
}

// What is wanted soon of a row, or of one that the next chunk begins with; it may lie behind the
// end.
void prefetch_row(const void* row, int64_t bytes_ahead) {
  _mm_prefetch(static_cast<const char*>(row) + bytes_ahead, _MM_HINT_T0);
}

// 4 x 16 words, four rows to a register, transposed.
void transpose_4x16(__m512i* r) {
  const __m512i t0 = _mm512_unpacklo_epi32(r[0], r[1]), t1 = _mm512_unpackhi_epi32(r[0], r[1]);
  const __m512i t2 = _mm512_unpacklo_epi32(r[2], r[3]), t3 = _mm512_unpackhi_epi32(r[2], r[3]);
  r[0] = _mm512_unpacklo_epi64(t0, t2);
  r[1] = _mm512_unpackhi_epi64(t0, t2);
  r[2] = _mm512_unpacklo_epi64(t1, t3);
  r[3] = _mm512_unpackhi_epi64(t1, t3);
}

// The 16 x 16 words of rows[0..15] transposed, `stored` words of each result row written, the rows
// `step` bytes apart; only `count` result rows.
void transpose_rows_16x16(const uint8_t* const* rows, uint8_t* to, int64_t step, __mmask16 stored,
                          int64_t count) {
  for (int64_t quarter = 0; quarter * 4 < count; ++quarter) {
    const int64_t at = quarter * 16;
    __m512i r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[i] = lanes(rows[i] + at, rows[4 + i] + at, rows[8 + i] + at, rows[12 + i] + at);
    }
    transpose_4x16(r);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if (quarter * 4 + i < count) {
        _mm512_mask_storeu_epi32(to + (quarter * 4 + i) * step, stored, r[i]);
      }
    }
  }
}

// Whole lines of kRows rows `stride` bytes apart and of zeros for the rest of 16, `stored` words of
// each result row written. Without a table of rows, whose addresses would take as long as their
// words.
template <int kRows>
void transpose_lines(const uint8_t* from, int64_t stride, int64_t lines, uint8_t* to, int64_t step,
                     __mmask16 stored) {
  const int64_t distance = std::min<int64_t>(8, lines);  // of what is fetched ahead
  const uint8_t* const fourth[4] = {from, from + 4 * stride, from + 8 * stride, from + 12 * stride};
  const auto row = [&](int i, int64_t at) __attribute__((always_inline)) {
    return i < kRows ? fourth[i / 4] + i % 4 * stride + at : kZeros;
  };
  for (int64_t line = 0; line < lines; ++line) {
    // Behind the end of these rows come the next.
    int64_t ahead = (line + distance) * kLine;
    if (line + distance >= lines) ahead += kRows * stride - lines * kLine;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) prefetch_row(row(i, ahead), 0);
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter, to += 4 * step) {
      const int64_t at = line * kLine + quarter * 16;
      __m512i r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        r[i] = lanes(row(i, at), row(4 + i, at), row(8 + i, at), row(12 + i, at));
      }
      transpose_4x16(r);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) _mm512_mask_storeu_epi32(to + i * step, stored, r[i]);
    }
  }
}
template <size_t... kLess>
constexpr auto transpose_lines_of(std::index_sequence<kLess...>) {
  return std::array{transpose_lines<static_cast<int>(kLess) + 1>...};
}

// `copy` receives the first `bytes` bytes of 16 rows, zeros after them; `rows` then points there.
void copy_short_rows(const uint8_t** rows, int64_t bytes, uint8_t (*copy)[kLine]) {
  for (int i = 0; i < 16; ++i) {
    _mm512_store_si512(copy[i], _mm512_maskz_loadu_epi8(first_lanes<__mmask64>(bytes), rows[i]));
    rows[i] = copy[i];
  }
}

}  // namespace

void transpose_words_avx512(const TransposeWords& call) {
  const auto* from = static_cast<const uint8_t*>(call.from);
  const int64_t step = call.panel_width * 4;
  alignas(64) uint8_t copy[16][kLine];
  for (int64_t first = 0; first < call.panel_width; first += 16) {
    const __mmask16 stored = first_lanes<__mmask16>(call.panel_width - first);
    auto* to = static_cast<uint8_t*>(call.to) + first * 4;
    const int64_t there = std::min<int64_t>(call.width - first, 16);
    int64_t begin = 0;
    if (there > 0) {
      static constexpr auto kLines = transpose_lines_of(std::make_index_sequence<16>());
      const int64_t lines = std::min(call.bytes, call.words * 4) / kLine;
      kLines[static_cast<size_t>(there - 1)](from + first * call.stride_bytes, call.stride_bytes,
                                             lines, to, step, stored);
      begin = lines * kLine;
    }
    for (int64_t at = begin; at < call.words * 4; at += kLine) {
      const uint8_t* rows[16];
      for (int64_t i = 0; i < 16; ++i) {
        const bool exists = first + i < call.width && at < call.bytes;
        rows[i] = exists ? from + (first + i) * call.stride_bytes + at : kZeros;
        prefetch_row(rows[i], 4 * kLine);
      }
      if (at < call.bytes && at + kLine > call.bytes) {
        copy_short_rows(rows, call.bytes - at, copy);
      }
      const int64_t left = call.words - at / 4;
      transpose_rows_16x16(rows, to + at / 4 * step, step, stored, left < 16 ? left : 16);
    }
  }
}

namespace {

// kVectors vectors of each row; the last of them may be less than whole.
template <int kVectors>
void copy_vectors(const PackCall& call, int64_t panel_width) {
  const auto* from = static_cast<const float*>(call.from);
  auto* to = static_cast<float*>(call.to);
  constexpr int64_t kWhole = (kVectors - 1) * 16;
  const auto read_first = first_lanes<__mmask16>(call.width);
  const auto read_last = first_lanes<__mmask16>(call.width - kWhole);
  const auto write_last = first_lanes<__mmask16>(panel_width - kWhole);
  const int64_t ahead = kAcrossChunk * call.stride * 4;
  for (int64_t k = 0; k < call.depth; ++k, from += call.stride, to += panel_width) {
    prefetch_row(from, ahead);
    if constexpr (kVectors == 2) {
      prefetch_row(from, ahead + kLine);
      _mm512_storeu_ps(to, _mm512_maskz_loadu_ps(read_first, from));
    }
    _mm512_mask_storeu_ps(to + kWhole, write_last, _mm512_maskz_loadu_ps(read_last, from + kWhole));
  }
}

}  // namespace

void copy_floats_avx512(const PackCall& call, int64_t panel_width) {
  panel_width > 16 ? copy_vectors<2>(call, panel_width) : copy_vectors<1>(call, panel_width);
}

void interleave_pairs_avx512(const PackCall& call, int64_t panel_width, int64_t pairs) {
  const auto* from = static_cast<const uint16_t*>(call.from);
  auto* to = static_cast<uint8_t*>(call.to);
  const __mmask32 read = first_lanes<__mmask32>(call.width);
  const __m512i low_lanes = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const __m512i high_lanes = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  const __mmask16 write0 = first_lanes<__mmask16>(panel_width);
  const int64_t ahead = kAcrossChunk * call.stride * 2;
  for (int64_t pair = 0; pair < pairs; ++pair, to += panel_width * 4) {
    const uint16_t* row = from + 2 * pair * call.stride;
    prefetch_row(row, ahead);
    prefetch_row(row, ahead + call.stride * 2);
    const __m512i even =
        2 * pair < call.depth ? _mm512_maskz_loadu_epi16(read, row) : _mm512_setzero_si512();
    const __m512i odd = 2 * pair + 1 < call.depth
                            ? _mm512_maskz_loadu_epi16(read, row + call.stride)
                            : _mm512_setzero_si512();
    const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
    _mm512_mask_storeu_epi32(to, write0, _mm512_permutex2var_epi64(low, low_lanes, high));
    if (panel_width > 16) {
      _mm512_mask_storeu_epi32(to + kLine, first_lanes<__mmask16>(panel_width - 16),
                               _mm512_permutex2var_epi64(low, high_lanes, high));
    }
  }
}

void copy_tiles_avx512(const CopyTiles& call) {
  const auto* from = static_cast<const uint8_t*>(call.from);
  constexpr int64_t kRows = 32;
  for (int64_t row = 0; row < kRows; ++row) {
    auto* to = static_cast<uint8_t*>(call.to) + row * kLine;
    if (row >= call.width) {
      for (int64_t at = 0; at < call.bytes; at += kLine, to += kRows * kLine) {
        _mm512_storeu_si512(to, _mm512_setzero_si512());
      }
      continue;
    }
    const uint8_t* source = from + row * call.stride_bytes;
    // Pieces of rows are too short for the processor to see a stream; it may run past the end.
    const uint8_t* ahead = source + 8 * call.stride_bytes;
    int64_t at = 0;
    for (; at + kLine <= call.bytes; at += kLine, to += kRows * kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + at), _MM_HINT_T0);
      _mm512_storeu_si512(to, _mm512_loadu_si512(source + at));
    }
    if (at < call.bytes) {
      _mm512_storeu_si512(
          to, _mm512_maskz_loadu_epi8(first_lanes<__mmask64>(call.bytes - at), source + at));
    }
  }
}

namespace {

// 32 rows of k, 8 columns each, to 8 rows of 32 values of k. A register's lanes hold rows k, k + 8,
// k + 16, k + 24, so that transposing 8 x 8 within lanes gives whole rows.
void transpose_32x8(const uint8_t* const* rows, int64_t at, uint8_t* to) {
  __m512i r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    r[i] = lanes(rows[i] + at, rows[8 + i] + at, rows[16 + i] + at, rows[24 + i] + at);
  }
  __m512i s[8], t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    t[4 * i] = _mm512_unpacklo_epi32(s[4 * i], s[4 * i + 2]);
    t[4 * i + 1] = _mm512_unpackhi_epi32(s[4 * i], s[4 * i + 2]);
    t[4 * i + 2] = _mm512_unpacklo_epi32(s[4 * i + 1], s[4 * i + 3]);
    t[4 * i + 3] = _mm512_unpackhi_epi32(s[4 * i + 1], s[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(to + (2 * i) * kLine, _mm512_unpacklo_epi64(t[i], t[4 + i]));
    _mm512_storeu_si512(to + (2 * i + 1) * kLine, _mm512_unpackhi_epi64(t[i], t[4 + i]));
  }
}

}  // namespace

void transpose_tiles_avx512(const PackCall& call) {
  const auto* from = static_cast<const uint8_t*>(call.from);
  constexpr int64_t kRows = 32, kDepth = 32;
  const bool whole = call.width >= kRows;
  alignas(64) uint8_t copy[kDepth][kLine];
  auto* to = static_cast<uint8_t*>(call.to);
  for (int64_t k = 0; k < call.depth; k += kDepth, to += kRows * kLine) {
    const uint8_t* rows[kDepth];
    for (int64_t i = 0; i < kDepth; ++i) {
      const bool exists = k + i < call.depth;
      rows[i] = exists ? from + (k + i) * call.stride * 2 : kZeros;
      // The next panel's part of the row.
      prefetch_row(rows[i], kLine);
      if (exists && !whole) {
        _mm512_store_si512(copy[i],
                           _mm512_maskz_loadu_epi16(first_lanes<__mmask32>(call.width), rows[i]));
        rows[i] = copy[i];
      }
    }
    for (int64_t column = 0; column < kRows; column += 8) {
      transpose_32x8(rows, column * 2, to + column * kLine);
    }
  }
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
