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
#include <type_traits>
#include <utility>

#include "kernels/avx512_words.h"
#include "kernels/cpu.h"
#include "kernels/float_type.h"
#include "kernels/quantize/code_kernel.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")
namespace ds::kernels {
namespace {

constexpr int64_t kRows = 14, kColumns = 32, kLanes = 16;
constexpr int64_t kWord = 4,
                  kBlock = 8;  // codes of a word; those that are in an order of their own

// ---- panels: of each piece the words, [piece / 4][rows or columns], then ----
struct RowScales {
  float scales[kRows];
  int32_t starts[kRows];
  float shifts[kRows];  // what minima are multiplied by
};
struct ColumnScales {
  float scales[kColumns];
  float minima[kColumns];
  float unused[kColumns];
};
constexpr int64_t kScaleBytes = 12;  // of a row or column
static_assert(sizeof(RowScales) == kScaleBytes * kRows);
static_assert(sizeof(ColumnScales) == kScaleBytes * kColumns);

template <int64_t kPiece>
constexpr int64_t kPieceBytes = kPiece + kScaleBytes;  // of a row or column

// ---- x as codes ----
__m512 load(const float* p, __mmask16 some) { return _mm512_maskz_loadu_ps(some, p); }
__m512 load(const bfloat16* p, __mmask16 some) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
__m512 load(const float16* p, __mmask16 some) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, p));
}

// The first n of kPiece numbers.
template <int64_t kPiece, class T>
void encode_piece(const T* x, int64_t n, int8_t* codes, float* scale, int32_t* sum) {
  constexpr int64_t kVectors = kPiece / kLanes;
  __m512 v[kVectors];
  __m512 largest = _mm512_setzero_ps(), odd = largest;
#pragma GCC unroll 4
  for (int64_t i = 0; i < kVectors; ++i) {
    v[i] = load(x + i * kLanes, first_lanes<__mmask16>(n - i * kLanes));
    largest = _mm512_max_ps(largest, _mm512_abs_ps(v[i]));
    odd = _mm512_add_ps(odd, _mm512_sub_ps(v[i], v[i]));  // NaN where a number is not finite
  }
  const float most = _mm512_reduce_max_ps(largest), nan = _mm512_reduce_add_ps(odd);
  const bool zero = nan != 0 || !(most > 1e-35f);
  *scale = nan != 0 ? nan : zero ? 0 : most / 127;
  const __m512 inverse = _mm512_set1_ps(zero ? 0 : 127 / most);
  // Every number of a piece that is not finite is 0, which NaN times 0 is not.
  const __mmask16 kept = zero ? 0 : 0xFFFF;
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int64_t i = 0; i < kVectors; ++i) {
    const __m512i whole = _mm512_maskz_cvtps_epi32(kept, _mm512_mul_ps(v[i], inverse));
    total = _mm512_add_epi32(total, whole);
    const __m128i bytes = _mm_shuffle_epi8(_mm512_cvtsepi32_epi8(whole), order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i * kLanes), bytes);
  }
  *sum = _mm512_reduce_add_epi32(total);
}

template <int64_t kPiece, class T>
void encode_rows(const T* x, int64_t k, const CodedRows& to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t p = 0; p < to.pieces; ++p) {
      const int64_t at = i * to.pieces + p;
      encode_piece<kPiece>(x + i * k + p * kPiece, k - p * kPiece, to.codes + at * kPiece,
                           to.scales + at, to.sums + at);
    }
  }
}
template <int64_t kPiece>
void encode(FloatType type, const void* x, int64_t k, const CodedRows& to, int64_t begin,
            int64_t end) {
  if (type == FloatType::kBFloat16) {
    return encode_rows<kPiece>(static_cast<const bfloat16*>(x), k, to, begin, end);
  }
  if (type == FloatType::kFloat16) {
    return encode_rows<kPiece>(static_cast<const float16*>(x), k, to, begin, end);
  }
  encode_rows<kPiece>(static_cast<const float*>(x), k, to, begin, end);
}

// ---- packing ----
template <int64_t kPiece>
void pack_x(const gemm::PackCall& call) {
  const auto& rows = *static_cast<const CodedRows*>(call.from);
  auto* to = static_cast<uint8_t*>(call.to);
  for (int64_t k = 0; k < call.depth; k += kPiece, to += kRows * kPieceBytes<kPiece>) {
    const int64_t first = call.index * rows.pieces + (call.k + k) / kPiece;
    auto& scales = *reinterpret_cast<RowScales*>(to + kRows * kPiece);
#pragma GCC unroll 1
    for (int64_t word = 0; word < kPiece / kWord; word += kLanes) {
      __m512i r[kLanes] = {};
      for (int64_t i = 0; i < call.width; ++i) {
        const auto some = first_lanes<__mmask16>(kPiece / kWord - word);
        r[i] = _mm512_maskz_loadu_epi32(
            some, rows.codes + (first + i * rows.pieces) * kPiece + word * kWord);
      }
      transpose_16x16(r);
      for (int64_t w = 0; w < kLanes && word + w < kPiece / kWord; ++w) {
        _mm512_mask_storeu_epi32(to + (word + w) * kRows * kWord, first_lanes<__mmask16>(kRows),
                                 r[w]);
      }
    }
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t at = first + i * rows.pieces;
      const bool exists = i < call.width;
      scales.scales[i] = exists ? rows.scales[at] : 0;
      scales.starts[i] = exists ? -rows.excess * rows.sums[at] : 0;
      scales.shifts[i] = exists ? rows.scales[at] * static_cast<float>(rows.sums[at]) : 0;
    }
  }
}

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

__m512 widen(const bfloat16* p) { return load(p, 0xFFFF); }

template <int64_t kPiece, bool kMinima>
void pack_w(const gemm::PackCall& call) {
  const auto& w = *static_cast<const QuantizedMatrix*>(call.from);
  auto* to = static_cast<uint8_t*>(call.to);
  const int64_t panel = call.index / kPanelRows;
  for (int64_t k = 0; k < call.depth; k += kPiece, to += kColumns * kPieceBytes<kPiece>) {
    const int64_t at = call.k + k;
    auto& scales = *reinterpret_cast<ColumnScales*>(to + kColumns * kPiece);
    for (int64_t half = 0; half < kColumns / kPanelRows; ++half) {
      const bool exists = half * kPanelRows < call.width;
      const uint8_t* const codes = w.codes + (panel + half) * w.panel_bytes();
      for (int64_t e = 0; e < kPiece; e += kBlock) {
        Words words{_mm512_setzero_si512(), _mm512_setzero_si512()};
        if (exists && at + e < w.padded_k()) {
          const uint8_t* const block = codes + (at + e) * kPanelRows * w.bits / 8;
          words = w.bits == 8 ? words_of_8(block) : words_of_4(block);
        }
        uint8_t* const out = to + (e * kColumns + half * kPanelRows * kWord);
        _mm512_storeu_si512(out, words.first);
        _mm512_storeu_si512(out + kColumns * kWord, words.second);
      }
      const int64_t scale = ((panel + half) * w.groups() + at / w.group_length()) * kPanelRows;
      const __m512 none = _mm512_setzero_ps();
      _mm512_storeu_ps(scales.scales + half * kLanes, exists ? widen(w.scales + scale) : none);
      if constexpr (kMinima) {
        _mm512_storeu_ps(scales.minima + half * kLanes, exists ? widen(w.minimum + scale) : none);
      }
    }
  }
}

// ---- products ----
// sum + the products of four codes of w, unsigned, and four of x. gcc 12 moves sums to memory and
// back around its own intrinsic, which takes more than twice as long.
inline __attribute__((always_inline)) void add_products(__m512i& sum, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

// A piece's sums for the first sizeof...(kRow) rows of a panel, scaled and added to C.
template <int64_t kPiece, size_t... kRow>
inline __attribute__((always_inline)) void multiply_piece(std::index_sequence<kRow...>,
                                                          const uint8_t* a, const uint8_t* b,
                                                          float* c, bool first) {
  const auto& rows = *reinterpret_cast<const RowScales*>(a + kRows * kPiece);
  const auto& columns = *reinterpret_cast<const ColumnScales*>(b + kColumns * kPiece);
  __m512i left[sizeof...(kRow)], right[sizeof...(kRow)];
  ((left[kRow] = right[kRow] = _mm512_set1_epi32(rows.starts[kRow])), ...);
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
  const __m512 scale0 = _mm512_loadu_ps(columns.scales),
               scale1 = _mm512_loadu_ps(columns.scales + kLanes);
  const auto finish = [&](size_t i) __attribute__((always_inline)) {
    float* const out = c + i * kColumns;
    const __m512 scale = _mm512_set1_ps(rows.scales[i]);
    __m512 c0 = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
    __m512 c1 = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + kLanes);
    c0 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(left[i]), _mm512_mul_ps(scale, scale0), c0);
    c1 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(right[i]), _mm512_mul_ps(scale, scale1), c1);
    _mm512_storeu_ps(out, c0);
    _mm512_storeu_ps(out + kLanes, c1);
  };
  (finish(kRow), ...);
}

// The pieces of one panel of rows, for each number of rows that a last panel may have.
template <int64_t kPiece, class Sequence = std::make_index_sequence<kRows>>
struct PiecesOfRows;
template <int64_t kPiece, size_t... kLess>
struct PiecesOfRows<kPiece, std::index_sequence<kLess...>> {
  template <size_t kCount>
  static void rows(const uint8_t* a, const uint8_t* b, int64_t pieces, float* c, bool first) {
    for (int64_t piece = 0; piece < pieces; ++piece) {
      multiply_piece<kPiece>(std::make_index_sequence<kCount>(), a, b, c, first && piece == 0);
      a += kRows * kPieceBytes<kPiece>;
      b += kColumns * kPieceBytes<kPiece>;
    }
  }
  using Multiply = decltype(&rows<1>);
  static constexpr Multiply kTable[] = {rows<kLess + 1>...};
};

// What minima add: of each piece, theirs times the sum of x.
template <int64_t kPiece>
void add_minima(const uint8_t* a, const uint8_t* b, int64_t pieces, int64_t rows, float* c) {
  const auto* const shifts = reinterpret_cast<const RowScales*>(a + kRows * kPiece)->shifts;
  const auto* const minima = reinterpret_cast<const ColumnScales*>(b + kColumns * kPiece)->minima;
  constexpr int64_t kRowStep = kRows * kPieceBytes<kPiece> / 4;
  constexpr int64_t kColumnStep = kColumns * kPieceBytes<kPiece> / 4;
  for (int64_t i = 0; i < rows; ++i, c += kColumns) {
    __m512 c0 = _mm512_loadu_ps(c), c1 = _mm512_loadu_ps(c + kLanes);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const __m512 shift = _mm512_set1_ps(shifts[piece * kRowStep + i]);
      const float* const from = minima + piece * kColumnStep;
      c0 = _mm512_fmadd_ps(shift, _mm512_loadu_ps(from), c0);
      c1 = _mm512_fmadd_ps(shift, _mm512_loadu_ps(from + kLanes), c1);
    }
    _mm512_storeu_ps(c, c0);
    _mm512_storeu_ps(c + kLanes, c1);
  }
}

template <int64_t kPiece, bool kMinima>
void multiply(const gemm::MultiplyCall& call) {
  const auto* a = static_cast<const uint8_t*>(call.a);
  const auto* const b = static_cast<const uint8_t*>(call.b);
  float* c = call.c;
  for (int64_t row = 0; row < call.rows; row += kRows) {
    const int64_t rows = call.rows - row < kRows ? call.rows - row : kRows;
    PiecesOfRows<kPiece>::kTable[rows - 1](a, b, call.depth / kPiece, c, call.first);
    if constexpr (kMinima) add_minima<kPiece>(a, b, call.depth / kPiece, rows, c);
    a += call.a_panel;
    c += kRows * kColumns;
  }
}

template <int64_t kPiece, bool kMinima>
constexpr CodeKernel code_kernel() {
  return {.piece = kPiece,
          .encode = encode<kPiece>,
          .product = {.rows = kRows,
                      .columns = kColumns,
                      .group = kPiece,
                      .depth = 512,
                      .element_bytes = 0,
                      .packed_bytes = 1,
                      .scale_bytes = kScaleBytes,
                      .a = {pack_x<kPiece>, nullptr},
                      .b = {pack_w<kPiece, kMinima>, nullptr},
                      .multiply = multiply<kPiece, kMinima>}};
}

}  // namespace

const CodeKernel& vnni_code_kernel(int64_t piece, bool minima) {
  static constexpr CodeKernel kernels[2][2] = {{code_kernel<32, false>(), code_kernel<32, true>()},
                                               {code_kernel<64, false>(), code_kernel<64, true>()}};
  return kernels[piece == 64 ? 1 : 0][minima ? 1 : 0];
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
