#include "kernels/quantize/byte_planes.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
namespace ds::kernels {
namespace {

#include "kernels/quantize/avx2_products-inl.h"

constexpr int64_t kBlock = 8;  // elements of a word of codes
constexpr int kPlanes = 3;     // bytes of a number
constexpr int64_t kHalf = kPanelRows / 2;
constexpr int64_t kMostPiece = 64;  // elements
constexpr int64_t kRun = 4;         // blocks whose sums fit 16 bits: 4 * 4 * 15 * 128 each
constexpr int64_t kBlockBytes = kBlock * kPlanes;  // of a prepared row

// What the sums of a piece of x become numbers with.
struct Piece {
  float scale;
  float shift;           // the sum of its numbers
  int32_t upper, lower;  // sums of the first plane, and of the others as one number
};

// A prepared row: of every block the bytes of elements 0, 4, 1, 5, 2, 6, 3, 7 as codes come apart,
// first of the lowest plane; then the pieces.
struct RowLayout {
  explicit RowLayout(const QuantizedShape& w)
      : group_pieces((w.group_length() + kMostPiece - 1) / kMostPiece),
        pieces_at((w.padded_k() * kPlanes + 15) / 16 * 16),
        bytes((pieces_at + w.groups() * group_pieces * static_cast<int64_t>(sizeof(Piece)) + 63) /
              64 * 64) {}
  int64_t group_pieces;  // places of pieces of each group; the last group may use fewer
  int64_t pieces_at;
  int64_t bytes;
};

template <class T>
__m256 load(const T* p) {
  if constexpr (std::is_same_v<T, float>) {
    return _mm256_loadu_ps(p);
  } else {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (std::is_same_v<T, float16>) return _mm256_cvtph_ps(words);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
}
// The first n of eight numbers; zero behind them.
template <class T>
__m256 load_some(const T* p, int64_t n) {
  if (n >= kBlock) return load(p);
  T some[kBlock] = {};
  for (int64_t i = 0; i < n; ++i) some[i] = p[i];
  return load(some);
}

float largest_lane(__m256 v) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, v);
  return *std::max_element(lanes, lanes + 8);
}
int32_t sum_of_lanes(__m256i v) {
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v);
  int32_t sum = 0;
  for (const int32_t lane : lanes) sum += lane;
  return sum;
}

// Eight whole numbers as the planes of a block.
void store_planes(__m256i whole, uint8_t* to) {
  // With 128 added to every digit, digits are bytes without a sign.
  const __m256i half = _mm256_set1_epi32(0x808080);
  const __m256i digits = _mm256_xor_si256(_mm256_add_epi32(whole, half), half);
  const __m256i apart = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                         0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i planes = _mm256_shuffle_epi8(digits, apart);
  const __m128i first = _mm256_castsi256_si128(planes),
                second = _mm256_extracti128_si256(planes, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi8(first, second));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 16), _mm_unpackhi_epi8(first, second));
}

// n numbers, of which `blocks` blocks are written. Where one is not finite, all results are NaN.
template <class T>
Piece prepare_piece(const T* x, int64_t n, int64_t blocks, uint8_t* to) {
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  __m256 largest = _mm256_setzero_ps(), odd = largest;
  for (int64_t b = 0; b < blocks; ++b) {
    const __m256 v = load_some(x + b * kBlock, n - b * kBlock);
    largest = _mm256_max_ps(largest, _mm256_and_ps(v, no_sign));
    odd = _mm256_or_ps(odd, _mm256_sub_ps(v, v));  // not zero where a number is not finite
  }
  const float most = largest_lane(largest);
  const bool finite = _mm256_testz_si256(_mm256_castps_si256(odd), _mm256_castps_si256(odd)) != 0;
  if (!finite || most == 0) {
    std::memset(to, 0, static_cast<size_t>(blocks * kBlockBytes));
    const float value = finite ? 0 : std::nanf("");
    return {.scale = value, .shift = value, .upper = 0, .lower = 0};
  }
  // The largest number gets 22 bits and a sign. Scales stay normal numbers.
  const int exponent = std::max(std::ilogb(most), -100) - 21;
  const __m256 inverse = _mm256_set1_ps(std::ldexp(1.0f, -exponent));
  __m256i upper = _mm256_setzero_si256(), lower = upper;
  for (int64_t b = 0; b < blocks; ++b) {
    const __m256 v = load_some(x + b * kBlock, n - b * kBlock);
    const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse));
    const __m256i first = _mm256_srai_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(0x8080)), 16);
    upper = _mm256_add_epi32(upper, first);
    lower = _mm256_add_epi32(lower, _mm256_sub_epi32(whole, _mm256_slli_epi32(first, 16)));
    store_planes(whole, to + b * kBlockBytes);
  }
  const float scale = std::ldexp(1.0f, exponent);
  const int32_t upper_sum = sum_of_lanes(upper), lower_sum = sum_of_lanes(lower);
  const double sum = 65536.0 * upper_sum + lower_sum;
  return {.scale = scale,
          .shift = static_cast<float>(sum * static_cast<double>(scale)),
          .upper = upper_sum,
          .lower = lower_sum};
}

template <class T>
void prepare(const QuantizedGemv& call, uint8_t* rows) {
  const QuantizedMatrix& w = call.w;
  const RowLayout layout(w);
  for (int64_t i = 0; i < call.m; ++i, rows += layout.bytes) {
    const T* x = static_cast<const T*>(call.x) + i * w.k;
    auto* const pieces = reinterpret_cast<Piece*>(rows + layout.pieces_at);
    for (int64_t g = 0; g < w.groups(); ++g) {
      const int64_t end = std::min((g + 1) * w.group_length(), w.padded_k());
      Piece* piece = pieces + g * layout.group_pieces;
      for (int64_t at = g * w.group_length(); at < end; at += kMostPiece, ++piece) {
        const int64_t length = std::min(kMostPiece, end - at);
        *piece = prepare_piece(x + at, w.k - at, length / kBlock, rows + at * kPlanes);
      }
    }
  }
}

__m256i load_codes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Sums of a piece, of both halves of a panel: of the upper plane, and of the others as one number.
template <int kT>
struct PieceSums {
  __m256i upper[kT][2], lower[kT][2];
};

// Adds planes [kFirst, +kCount) of up to kRun blocks for kT rows of x, so many that sums stay in
// registers; they are named by pack expansion for that.
template <int kFirst, int kCount, int kT, size_t... kSum>
HWY_INLINE void add_planes(std::index_sequence<kSum...>, const uint8_t* codes,
                           const uint8_t* const (&x)[kT], int64_t blocks, int64_t ahead,
                           PieceSums<kT>& sums) {
  static_assert(sizeof...(kSum) == kCount * kT);
  constexpr int64_t kWords = kPanelRows * 4;  // bytes of a block of a panel
  __m256i left[sizeof...(kSum)], right[sizeof...(kSum)];
  ((left[kSum] = right[kSum] = _mm256_setzero_si256()), ...);
#pragma GCC unroll 1
  for (int64_t b = 0; b < blocks; ++b) {
    if constexpr (kFirst == 0) __builtin_prefetch(codes + b * kWords + ahead);
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i all0 = load_codes(codes + b * kWords), all1 = load_codes(codes + b * kWords + 32);
    const auto words = [&](size_t i) __attribute__((always_inline)) {
      return x[i / kCount] + b * kBlockBytes + (kFirst + static_cast<int64_t>(i % kCount)) * kBlock;
    };
    const __m256i first0 = _mm256_and_si256(all0, low), first1 = _mm256_and_si256(all1, low);
    (add_bytes(left[kSum], right[kSum], first0, first1, words(kSum)), ...);
    const __m256i second0 = _mm256_and_si256(_mm256_srli_epi16(all0, 4), low);
    const __m256i second1 = _mm256_and_si256(_mm256_srli_epi16(all1, 4), low);
    (add_bytes(left[kSum], right[kSum], second0, second1, words(kSum) + 4), ...);
  }
  const auto add = [](__m256i & into, __m256i sum, int16_t weight) __attribute__((always_inline)) {
    into = _mm256_add_epi32(into, _mm256_madd_epi16(sum, _mm256_set1_epi16(weight)));
  };
  const auto take = [&](size_t i, __m256i l, __m256i r) __attribute__((always_inline)) {
    const size_t plane = kFirst + i % kCount, t = i / kCount;
    __m256i* const into = plane == kPlanes - 1 ? sums.upper[t] : sums.lower[t];
    add(into[0], l, plane == 1 ? 256 : 1);
    add(into[1], r, plane == 1 ? 256 : 1);
  };
  (take(kSum, left[kSum], right[kSum]), ...);
}

template <int kT>
HWY_INLINE void add_run(const uint8_t* codes, const uint8_t* const (&x)[kT], int64_t blocks,
                        int64_t ahead, PieceSums<kT>& sums) {
  if constexpr (kT == 1) {
    add_planes<0, kPlanes>(std::make_index_sequence<kPlanes>(), codes, x, blocks, ahead, sums);
  } else {
    add_planes<0, 1>(std::make_index_sequence<kT>(), codes, x, blocks, ahead, sums);
    add_planes<1, 1>(std::make_index_sequence<kT>(), codes, x, blocks, ahead, sums);
    add_planes<2, 1>(std::make_index_sequence<kT>(), codes, x, blocks, ahead, sums);
  }
}

template <bool kMinima, int kT>
void panel_sums(const QuantizedGemv& call, const uint8_t* rows, int64_t panel, float* out) {
  const QuantizedMatrix& w = call.w;
  const RowLayout layout(w);
  const uint8_t* const codes = w.codes + panel * w.panel_bytes();
  const int64_t groups = w.groups(), length = w.group_length(), padded = w.padded_k();
  const int64_t ahead = w.panel_bytes(), scales_ahead = groups * kPanelRows;
  __m256 total[kT][2];
  for (int t = 0; t < kT; ++t) total[t][0] = total[t][1] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t end = std::min((g + 1) * length, padded);
    const int64_t scale_at = (panel * groups + g) * kPanelRows;
    __builtin_prefetch(w.scales + scale_at + scales_ahead);
    if constexpr (kMinima) __builtin_prefetch(w.minimum + scale_at + scales_ahead);
    int64_t index = g * layout.group_pieces;
    for (int64_t at = g * length; at < end; at += kMostPiece, ++index) {
      const int64_t piece_end = std::min(at + kMostPiece, end);
      const Piece* piece[kT];
      PieceSums<kT> sums;
      for (int t = 0; t < kT; ++t) {
        const uint8_t* const row = rows + t * layout.bytes;
        piece[t] = reinterpret_cast<const Piece*>(row + layout.pieces_at) + index;
        const int32_t excess = kMinima ? 0 : 8;
        sums.upper[t][0] = sums.upper[t][1] = _mm256_set1_epi32(-excess * piece[t]->upper);
        sums.lower[t][0] = sums.lower[t][1] = _mm256_set1_epi32(-excess * piece[t]->lower);
      }
      for (int64_t l = at; l < piece_end; l += kRun * kBlock) {
        const uint8_t* x[kT];
        for (int t = 0; t < kT; ++t) x[t] = rows + t * layout.bytes + l * kPlanes;
        add_run<kT>(codes + l / kBlock * kPanelRows * 4, x,
                    std::min(kRun, (piece_end - l) / kBlock), ahead, sums);
      }
      for (int half = 0; half < 2; ++half) {
        const __m256 scale = load(w.scales + scale_at + half * kHalf);
        for (int t = 0; t < kT; ++t) {
          const __m256 number =
              _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums.upper[t][half]), _mm256_set1_ps(65536),
                              _mm256_cvtepi32_ps(sums.lower[t][half]));
          __m256& into = total[t][half];
          into =
              _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_set1_ps(piece[t]->scale)), number, into);
          if constexpr (kMinima) {
            const __m256 least = load(w.minimum + scale_at + half * kHalf);
            into = _mm256_fmadd_ps(least, _mm256_set1_ps(piece[t]->shift), into);
          }
        }
      }
    }
  }
  for (int t = 0; t < kT; ++t, out += kPanelRows) {
    _mm256_storeu_ps(out, total[t][0]);
    _mm256_storeu_ps(out + kHalf, total[t][1]);
  }
}

using Sums = void (*)(const QuantizedGemv&, const uint8_t*, int64_t, float*);
template <bool kMinima>
constexpr Sums kSums[kMostByteTokens] = {panel_sums<kMinima, 1>, panel_sums<kMinima, 2>,
                                         panel_sums<kMinima, 3>, panel_sums<kMinima, 4>};

}  // namespace

int64_t byte_planes_stride(const QuantizedShape& w) {
  return RowLayout(w).bytes / static_cast<int64_t>(sizeof(float));
}

void byte_planes_prepare(const QuantizedGemv& call, float* rows) {
  auto* const to = reinterpret_cast<uint8_t*>(rows);
  with_float_type(call.type, [&](auto t) { prepare<decltype(t)>(call, to); });
}

void byte_planes_sums(const QuantizedGemv& call, const float* rows, int64_t panel, int64_t token,
                      int tokens, float* sums) {
  const auto* const first =
      reinterpret_cast<const uint8_t*>(rows) + token * RowLayout(call.w).bytes;
  (call.w.minima ? kSums<true> : kSums<false>)[tokens - 1](call, first, panel, sums);
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
