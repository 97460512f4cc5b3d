// Rows of activations as 8-bit codes.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/quantize/code_kernel.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/encode_rows_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

using D32 = hn::RebindToUnsigned<DF>;
using V32 = hn::Vec<D32>;

// Codes in the order of RowCodes: the low bytes of `words`.
template <size_t kVectors>
HWY_INLINE void store_codes(const V32 (&words)[kVectors], int8_t* codes) {
  HWY_ALIGN constexpr uint8_t kOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
  constexpr size_t kLanes = hn::MaxLanes(D32());
  const hn::Rebind<uint8_t, D32> narrow;
  auto* const to = reinterpret_cast<uint8_t*>(codes);
  if constexpr (kLanes >= 8) {
    const auto order = hn::LoadU(narrow, kOrder);
#pragma GCC unroll 64
    for (size_t i = 0; i < kVectors; ++i) {
      hn::StoreU(hn::TableLookupBytes(hn::TruncateTo(narrow, words[i]), order), narrow,
                 to + i * kLanes);
    }
  } else {
    const hn::FixedTag<uint8_t, 16> d;
    HWY_ALIGN uint8_t bytes[kVectors * kLanes];
    for (size_t i = 0; i < kVectors; ++i) {
      hn::StoreU(hn::TruncateTo(narrow, words[i]), narrow, bytes + i * kLanes);
    }
    for (size_t i = 0; i < kVectors * kLanes; i += 16) {
      hn::StoreU(hn::TableLookupBytes(hn::LoadU(d, bytes + i), hn::Load(d, kOrder)), d, to + i);
    }
  }
}

// The first n of kPiece numbers.
template <int64_t kPiece, class T>
HWY_INLINE void encode_piece(const T* x, int64_t n, int8_t* codes, float* scale, int32_t* sum) {
  constexpr int64_t kLanes = hn::MaxLanes(DF()), kVectors = kPiece / kLanes;
  constexpr int64_t kMaxima = 4;  // which do not wait for one another
  const DF d;
  const D32 d32;
  VF v[kVectors];
  if (n >= kPiece) {
#pragma GCC unroll 64
    for (int64_t i = 0; i < kVectors; ++i) v[i] = simd::load(d, x + i * kLanes);
  } else {
    for (int64_t i = 0; i < kVectors; ++i) {
      const int64_t here = std::clamp<int64_t>(n - i * kLanes, 0, kLanes);
      v[i] = simd::load_n(d, x + i * kLanes, here);
    }
  }
  // Bits of magnitudes order like these, infinity and then NaN above all numbers.
  constexpr uint32_t kInfinity = 0x7F800000;
  V32 largest[kMaxima] = {hn::Zero(d32), hn::Zero(d32), hn::Zero(d32), hn::Zero(d32)};
#pragma GCC unroll 64
  for (int64_t i = 0; i < kVectors; ++i) {
    V32& most = largest[i % kMaxima];
    most = hn::Max(most, hn::BitCast(d32, hn::Abs(v[i])));
  }
  const auto of_all = hn::Max(hn::Max(largest[0], largest[1]), hn::Max(largest[2], largest[3]));
  const uint32_t bits = hn::GetLane(hn::MaxOfLanes(d32, of_all));
  const float most = std::bit_cast<float>(bits);
  const bool zero = bits >= kInfinity || !(most > 1e-35f);
  // Codes of 0 times a scale that is NaN are NaN.
  *scale = bits >= kInfinity ? std::numeric_limits<float>::quiet_NaN() : zero ? 0 : most / 127;
  if (zero) {
    std::fill_n(codes, kPiece, int8_t{0});
    *sum = 0;
    return;
  }
  // Added to it, a number is rounded to a whole one, halves to even, whose lowest bits are its own.
  constexpr float kRounding = 3 << 22;
  const VF inverse = hn::Set(d, 127 / most), rounding = hn::Set(d, kRounding);
  V32 words[kVectors], total = hn::Zero(d32);
#pragma GCC unroll 64
  for (int64_t i = 0; i < kVectors; ++i) {
    words[i] = hn::BitCast(d32, hn::Add(hn::Mul(v[i], inverse), rounding));
    total = hn::Add(total, words[i]);
  }
  store_codes(words, codes);
  constexpr uint32_t kExcess = std::bit_cast<uint32_t>(kRounding) * uint32_t{kVectors};
  const auto sums = hn::Sub(total, hn::Set(d32, kExcess));
  const hn::RebindToSigned<DF> whole;
  *sum = hn::GetLane(hn::SumOfLanes(whole, hn::BitCast(whole, sums)));
}

template <int64_t kPiece, class T>
void encode(const T* x, int64_t k, const RowCodes& to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t p = 0; p < to.pieces; ++p) {
      const int64_t at = i * to.pieces + p;
      encode_piece<kPiece>(x + i * k + p * kPiece, k - p * kPiece, to.codes + at * kPiece,
                           to.scales + at, to.sums + at);
    }
  }
}

void rows(FloatType type, const void* x, int64_t k, const RowCodes& to, int64_t begin,
          int64_t end) {
  with_float_type(type, [&](auto t) {
    const auto* const numbers = static_cast<const decltype(t)*>(x);
    static constexpr auto kEncode =
        for_code_pieces([](auto piece) { return &encode<decltype(piece)::value, decltype(t)>; });
    kEncode[code_piece_index(to.piece)](numbers, k, to, begin, end);
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {

HWY_EXPORT(rows);

void encode_rows(FloatType type, const void* x, int64_t k, const RowCodes& to, int64_t begin,
                 int64_t end) {
  HWY_DYNAMIC_DISPATCH(rows)(type, x, k, to, begin, end);
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
