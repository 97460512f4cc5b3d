// Rows of activations as 8-bit codes.
#include <algorithm>

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

// The order of RowCodes, of 16 codes.
HWY_INLINE void store_in_order(const int8_t* codes, int8_t* to) {
  const hn::FixedTag<int8_t, 16> d;
  HWY_ALIGN constexpr int8_t kOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
  hn::StoreU(hn::TableLookupBytes(hn::LoadU(d, codes), hn::Load(d, kOrder)), d, to);
}

// The first n of kPiece numbers.
template <int64_t kPiece, class T>
HWY_INLINE void encode_piece(const T* x, int64_t n, int8_t* codes, float* scale, int32_t* sum) {
  constexpr int64_t kLanes = hn::MaxLanes(DF()), kVectors = kPiece / kLanes;
  const DF d;
  const hn::RebindToSigned<DF> d32;
  VF v[kVectors];
  if (n >= kPiece) {
    for (int64_t i = 0; i < kVectors; ++i) v[i] = simd::load(d, x + i * kLanes);
  } else {
    for (int64_t i = 0; i < kVectors; ++i) {
      const int64_t here = std::clamp<int64_t>(n - i * kLanes, 0, kLanes);
      v[i] = simd::load_n(d, x + i * kLanes, here);
    }
  }
  VF largest = hn::Zero(d), odd = largest;
  for (int64_t i = 0; i < kVectors; ++i) {
    largest = hn::Max(largest, hn::Abs(v[i]));
    odd = hn::Add(odd, hn::Sub(v[i], v[i]));  // NaN where a number is not finite
  }
  const float most = simd::max_of_lanes(d, largest), nan = simd::sum_of_lanes(d, odd);
  // Every number of a piece that is not finite is 0, which NaN times 0 is not.
  const bool zero = nan != 0 || !(most > 1e-35f);
  *scale = nan != 0 ? nan : zero ? 0 : most / 127;
  const VF inverse = hn::Set(d, zero ? 0 : 127 / most);
  HWY_ALIGN int8_t bytes[kPiece] = {};
  auto total = hn::Zero(d32);
  if (!zero) {
    for (int64_t i = 0; i < kVectors; ++i) {
      const auto whole = hn::NearestInt(hn::Mul(v[i], inverse));
      total = hn::Add(total, whole);
      hn::StoreU(hn::DemoteTo(hn::Rebind<int8_t, DF>(), whole), hn::Rebind<int8_t, DF>(),
                 bytes + i * kLanes);
    }
  }
  for (int64_t i = 0; i < kPiece; i += 16) store_in_order(bytes + i, codes + i);
  *sum = hn::GetLane(hn::SumOfLanes(d32, total));
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
