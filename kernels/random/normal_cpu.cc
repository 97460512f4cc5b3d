// Normal numbers with Highway. Only operations that every processor rounds alike are used, none of
// them fused, so that all targets have the same bits; the functions are within a few units in
// the last place of double precision: of 320 million floats six were not those of the C library.
#include <algorithm>
#include <cstring>

#include "kernels/random/normal.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/random/normal_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<double>;
using U = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
using VU = hn::Vec<U>;

// Whole numbers below 2^52 by their bits: no conversion of 64-bit integers, which older processors
// have not.
HWY_INLINE V to_double(VU n) {
  const D d;
  const U du;
  const V shift = hn::Set(d, 0x1.0p52);
  return hn::Sub(hn::BitCast(d, hn::Or(n, hn::BitCast(du, shift))), shift);
}

template <size_t kTerms>
HWY_INLINE V polynomial(V x, const double (&terms)[kTerms]) {
  const D d;
  V sum = hn::Set(d, terms[0]);
  for (size_t i = 1; i < kTerms; ++i) sum = hn::Add(hn::Mul(sum, x), hn::Set(d, terms[i]));
  return sum;
}

// log of u in (0, 1): u = 2^k m with m from sqrt(1/2) to sqrt(2), log m = 2 atanh((m - 1) / (m +
// 1)).
HWY_INLINE V log_of(V u) {
  const D d;
  const U du;
  constexpr uint64_t kRootHalf = 0x3FE6A09E667F3BCDu;
  constexpr uint64_t kBias = 1024;  // keeps the exponent positive
  const VU bits = hn::BitCast(du, u);
  const VU exponent =
      hn::ShiftRight<52>(hn::Add(hn::Sub(bits, hn::Set(du, kRootHalf)), hn::Set(du, kBias << 52)));
  const VU scale = hn::ShiftLeft<52>(hn::Sub(exponent, hn::Set(du, kBias)));
  const V m = hn::BitCast(d, hn::Sub(bits, scale));
  const V k = hn::Sub(to_double(exponent), hn::Set(d, static_cast<double>(kBias)));
  const V one = hn::Set(d, 1.0);
  const V s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const V z = hn::Mul(s, s);
  static constexpr double kTerms[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                      1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
  const V twice = hn::Add(s, s);
  const V log_m = hn::Add(twice, hn::Mul(hn::Mul(twice, z), polynomial(z, kTerms)));
  // The logarithm of 2 in two parts, the first with few enough bits that k times it is exact.
  const V high = hn::Mul(k, hn::Set(d, 0x1.62e42fefa3800p-1));
  const V low = hn::Mul(k, hn::Set(d, 0x1.ef35793c76730p-45));
  return hn::Add(high, hn::Add(log_m, low));
}

struct CosSin {
  V cos, sin;
};

// Of 2 pi t for t = odd / 2^33: the nearest quarter turn is taken off exactly.
HWY_INLINE CosSin cos_sin_of_turns(VU odd) {
  const D d;
  const U du;
  const VU quarter = hn::ShiftRight<31>(hn::Add(odd, hn::Set(du, uint64_t{1} << 30)));  // 0 to 4
  const V rest = hn::Sub(to_double(odd), hn::Mul(to_double(quarter), hn::Set(d, 0x1.0p31)));
  const V x = hn::Mul(rest, hn::Set(d, 6.283185307179586476925 * 0x1.0p-33));
  const V z = hn::Mul(x, x);
  static constexpr double kSin[] = {
      1 / 355687428096000.0, -1 / 1307674368000.0, 1 / 6227020800.0, -1 / 39916800.0,
      1 / 362880.0,          -1 / 5040.0,          1 / 120.0,        -1 / 6.0};
  static constexpr double kCos[] = {
      1 / 20922789888000.0, -1 / 87178291200.0, 1 / 479001600.0, -1 / 3628800.0,
      1 / 40320.0,          -1 / 720.0,         1 / 24.0,        -1 / 2.0};
  const V sin = hn::Add(x, hn::Mul(hn::Mul(x, z), polynomial(z, kSin)));
  const V cos = hn::Add(hn::Set(d, 1.0), hn::Mul(z, polynomial(z, kCos)));
  // Quarter turns: odd ones change places, 1 and 2 the sign of the cosine, 2 and 3 that of the
  // sine.
  const VU one = hn::Set(du, 1);
  const auto swapped =
      hn::MaskFromVec(hn::BitCast(d, hn::Sub(hn::Zero(du), hn::And(quarter, one))));
  const VU cos_sign = hn::ShiftLeft<62>(hn::And(hn::Add(quarter, one), hn::Set(du, 2)));
  const VU sin_sign = hn::ShiftLeft<62>(hn::And(quarter, hn::Set(du, 2)));
  return {hn::BitCast(d, hn::Xor(hn::BitCast(du, hn::IfThenElse(swapped, sin, cos)), cos_sign)),
          hn::BitCast(d, hn::Xor(hn::BitCast(du, hn::IfThenElse(swapped, cos, sin)), sin_sign))};
}

// Two floats in the halves of a 64-bit lane.
HWY_INLINE VU paired_floats(V first, V second) {
  const U du;
  const hn::Rebind<float, D> df;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = [&](V v) DS_SIMD_BODY {
    return hn::PromoteTo(du, hn::BitCast(d32, hn::DemoteTo(df, v)));
  };
  return hn::Or(bits(first), hn::ShiftLeft<32>(bits(second)));
}

constexpr int64_t kTile = 1024;

void normal_numbers(const NormalNumbers& call) {
  const D d;
  const U du;
  const simd::Philox philox(call.stream);
  const V deviation = hn::Set(d, call.deviation);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  alignas(64) uint32_t bits[kTile + simd::Philox::kPadding];
  alignas(64) float tile[kTile + 2 * hn::MaxLanes(D())];
  const int64_t end = call.begin + call.count;
  for (int64_t at = call.begin / 4 * 4; at < end; at += kTile) {
    const int64_t size = std::min(kTile, end - at);
    const uint32_t* const words = philox.random_bits(static_cast<uint64_t>(at), size, bits);
    for (int64_t i = 0; i < size; i += 2 * lanes) {
      const VU pair = hn::BitCast(du, hn::LoadU(hn::Repartition<uint32_t, U>(), words + i));
      const VU one = hn::Set(du, 1);
      const VU first = hn::Add(hn::ShiftLeft<1>(hn::And(pair, hn::Set(du, 0xFFFFFFFFu))), one);
      const VU second = hn::Add(hn::ShiftLeft<1>(hn::ShiftRight<32>(pair)), one);
      const V u = hn::Mul(to_double(first), hn::Set(d, 0x1.0p-33));
      const V radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0), log_of(u)));
      const CosSin direction = cos_sin_of_turns(second);
      hn::StoreU(hn::BitCast(hn::Repartition<float, U>(),
                             paired_floats(hn::Mul(hn::Mul(radius, direction.cos), deviation),
                                           hn::Mul(hn::Mul(radius, direction.sin), deviation))),
                 hn::Repartition<float, U>(), tile + i);
    }
    const int64_t skip = std::max<int64_t>(0, call.begin - at);
    std::memcpy(call.out + (at + skip - call.begin), tile + skip,
                static_cast<size_t>(size - skip) * sizeof(float));
  }
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {
HWY_EXPORT(normal_numbers);
}  // namespace

void fill_normal(const NormalNumbers& call) { HWY_DYNAMIC_DISPATCH(normal_numbers)(call); }

}  // namespace ds::kernels
#endif  // HWY_ONCE
