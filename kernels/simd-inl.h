// What Highway kernels share: float lanes loaded from and stored to fp32, bf16 or fp16 memory, sums
// of lanes, and exp, tanh and erf of stated accuracy.
//
// Compiled once per instruction set. A kernel file looks like this:
//
//   #include "kernels/simd_targets.h"
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "kernels/<family>/<op>_cpu.cc"
//   #include <hwy/foreach_target.h>
//   #include "kernels/simd-inl.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace ds::kernels::HWY_NAMESPACE { ... }   // here the helpers are simd::load and so on
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE ... HWY_EXPORT(...) ... HWY_DYNAMIC_DISPATCH(...)(...) ... #endif
#include <cstddef>
#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"

#if defined(DS_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_SIMD_INL_H_
#undef DS_KERNELS_SIMD_INL_H_
#else
#define DS_KERNELS_SIMD_INL_H_
#endif

#include <hwy/highway.h>

// Marks lambdas with vector code: compiled for the target, and part of the loop that calls them.
#ifndef DS_SIMD_BODY
#define DS_SIMD_BODY HWY_ATTR __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE::simd {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(DF())); }

#undef DS_SIMD_MASKS_32
#undef DS_SIMD_MASKS_16
#if HWY_TARGET <= HWY_AVX2  // smaller numbers are better targets; these mask 32-bit accesses
#define DS_SIMD_MASKS_32 1
#else
#define DS_SIMD_MASKS_32 0
#endif
#if HWY_TARGET <= HWY_AVX3
#define DS_SIMD_MASKS_16 1
#else
#define DS_SIMD_MASKS_16 0
#endif

// ---- fp32 lanes from memory of any type; no alignment is assumed ----

HWY_INLINE VF load(DF d, const float* p) { return hn::LoadU(d, p); }

HWY_INLINE VF load(DF d, const bfloat16* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

HWY_INLINE void store(VF v, DF d, float* p) { hn::StoreU(v, d, p); }

// The bits of base/bfloat16.h to_bfloat16 in the low half of each lane: round to nearest even, a
// NaN keeps its sign and upper payload and becomes quiet.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> bfloat16_bits(VF v) {
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu))));
  const auto quiet = hn::Or(upper, hn::Set(d32, 0x40u));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
}

HWY_INLINE void store(VF v, DF, bfloat16* p) {
  const hn::Rebind<uint16_t, DF> d16;
  hn::StoreU(hn::TruncateTo(d16, bfloat16_bits(v)), d16, reinterpret_cast<uint16_t*>(p));
}

// fp16 through the conversions of the instruction set, which the newer two have (F16C), else one
// lane at a time. Both give the bits of base/float16.h.
#undef DS_SIMD_HALF
#if HWY_TARGET <= HWY_AVX2
#define DS_SIMD_HALF 1
#else
#define DS_SIMD_HALF 0
#endif

#if DS_SIMD_HALF
using VHalfBits = hn::Vec<hn::Rebind<uint16_t, DF>>;

HWY_INLINE VF half_to_float(DF d, VHalfBits bits) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
}
HWY_INLINE VHalfBits half_bits(VF v) {
  return hn::BitCast(hn::Rebind<uint16_t, DF>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), v));
}
#endif

HWY_INLINE VF load(DF d, const float16* p) {
#if DS_SIMD_HALF
  const hn::Rebind<uint16_t, DF> d16;
  return half_to_float(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())];
  for (int64_t i = 0; i < lanes(); ++i) buffer[i] = to_float(p[i]);
  return hn::Load(d, buffer);
#endif
}

HWY_INLINE void store(VF v, DF d, float16* p) {
#if DS_SIMD_HALF
  (void)d;
  hn::StoreU(half_bits(v), hn::Rebind<uint16_t, DF>(), reinterpret_cast<uint16_t*>(p));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())];
  hn::Store(v, d, buffer);
  for (int64_t i = 0; i < lanes(); ++i) p[i] = to_float16(buffer[i]);
#endif
}

// ---- the first n lanes only, 0 <= n <= lanes: nothing beyond is read or written ----

HWY_INLINE VF load_n(DF d, const float* p, int64_t n) {
#if DS_SIMD_MASKS_32
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return hn::Load(d, buffer);
#endif
}

HWY_INLINE VF load_n(DF d, const bfloat16* p, int64_t n) {
#if DS_SIMD_MASKS_16
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::MaskedLoad(hn::FirstN(d16, static_cast<size_t>(n)), d16,
                                   reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = to_float(p[i]);
  return hn::Load(d, buffer);
#endif
}

HWY_INLINE VF load_n(DF d, const float16* p, int64_t n) {
#if DS_SIMD_MASKS_16
  const hn::Rebind<uint16_t, DF> d16;
  return half_to_float(d, hn::MaskedLoad(hn::FirstN(d16, static_cast<size_t>(n)), d16,
                                         reinterpret_cast<const uint16_t*>(p)));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = to_float(p[i]);
  return hn::Load(d, buffer);
#endif
}

HWY_INLINE void store_n(VF v, DF d, float* p, int64_t n) {
#if DS_SIMD_MASKS_32
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, p);
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())];
  hn::Store(v, d, buffer);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
#endif
}

HWY_INLINE void store_n(VF v, DF, bfloat16* p, int64_t n) {
#if DS_SIMD_MASKS_16
  const hn::Rebind<uint16_t, DF> d16;
  hn::BlendedStore(hn::TruncateTo(d16, bfloat16_bits(v)), hn::FirstN(d16, static_cast<size_t>(n)),
                   d16, reinterpret_cast<uint16_t*>(p));
#else
  const hn::RebindToUnsigned<DF> d32;
  HWY_ALIGN uint32_t buffer[hn::MaxLanes(DF())];
  hn::Store(bfloat16_bits(v), d32, buffer);
  for (int64_t i = 0; i < n; ++i) p[i].bits = static_cast<uint16_t>(buffer[i]);
#endif
}

HWY_INLINE void store_n(VF v, DF d, float16* p, int64_t n) {
#if DS_SIMD_MASKS_16
  (void)d;
  const hn::Rebind<uint16_t, DF> d16;
  hn::BlendedStore(half_bits(v), hn::FirstN(d16, static_cast<size_t>(n)), d16,
                   reinterpret_cast<uint16_t*>(p));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())];
  hn::Store(v, d, buffer);
  for (int64_t i = 0; i < n; ++i) p[i] = to_float16(buffer[i]);
#endif
}

// ---- whole vectors and the tail through one body ----

// A count of lanes that is known to be a whole vector, so that load and store need no mask.
struct AllLanes {};

template <class T>
HWY_INLINE VF load_n(DF d, const T* p, AllLanes) {
  return load(d, p);
}
template <class T>
HWY_INLINE void store_n(VF v, DF d, T* p, AllLanes) {
  store(v, d, p);
}

// Zero in the lanes from n on.
HWY_INLINE VF keep_n(DF, VF v, AllLanes) { return v; }
HWY_INLINE VF keep_n(DF d, VF v, int64_t n) {
  return hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(n)), v);
}

// The value that a store to T and a load would give.
template <class T>
HWY_INLINE VF rounded_to(DF d, VF v);
template <>
HWY_INLINE VF rounded_to<float>(DF, VF v) {
  return v;
}
template <>
HWY_INLINE VF rounded_to<bfloat16>(DF d, VF v) {
  return hn::BitCast(d, hn::ShiftLeft<16>(bfloat16_bits(v)));
}
template <>
HWY_INLINE VF rounded_to<float16>(DF d, VF v) {
#if DS_SIMD_HALF
  return half_to_float(d, half_bits(v));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())];
  hn::Store(v, d, buffer);
  for (int64_t i = 0; i < lanes(); ++i) buffer[i] = to_float(to_float16(buffer[i]));
  return hn::Load(d, buffer);
#endif
}

// Calls body(i, count) over [0, n), with count AllLanes for whole vectors and the number left for
// the tail. The body is a generic lambda [&](int64_t i, auto count) DS_SIMD_BODY { ... }.
template <class Body>
HWY_INLINE void for_vectors(int64_t n, const Body& body) {
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + step <= n; i += step) body(i, AllLanes());
  if (i < n) body(i, n - i);
}

// ---- sums ----

HWY_INLINE float sum_of_lanes(DF d, VF v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

// The sum over [0, n) of term(i, count), which gives zero in lanes from count on. Four partial sums
// per lane.
template <class Term>
HWY_INLINE float sum_over(int64_t n, const Term& term) {
  const DF d;
  const int64_t step = lanes();
  VF s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    s0 = hn::Add(s0, term(i, AllLanes()));
    s1 = hn::Add(s1, term(i + step, AllLanes()));
    s2 = hn::Add(s2, term(i + 2 * step, AllLanes()));
    s3 = hn::Add(s3, term(i + 3 * step, AllLanes()));
  }
  for (; i + step <= n; i += step) s0 = hn::Add(s0, term(i, AllLanes()));
  if (i < n) s1 = hn::Add(s1, term(i, n - i));
  return sum_of_lanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

HWY_INLINE float max_of_lanes(DF d, VF v) { return hn::GetLane(hn::MaxOfLanes(d, v)); }

// The lower and upper half of the lanes as doubles.
using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;
HWY_INLINE VD lower_doubles(VF v) {
  const hn::Half<DF> half;
  return hn::PromoteTo(DD(), hn::LowerHalf(half, v));
}
HWY_INLINE VD upper_doubles(VF v) {
  const hn::Half<DF> half;
  return hn::PromoteTo(DD(), hn::UpperHalf(half, v));
}
HWY_INLINE double sum_of_lanes(DD d, VD v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

// ---- functions; polynomials are minimax fits made for this file ----

// e^x within 2 ulp. Below -87.33654 (where results become subnormal) it is 0, above 88.37626 (half
// a binade below the largest float) infinity; NaN stays NaN.
HWY_INLINE VF exp(DF d, VF x) {
  const hn::RebindToSigned<DF> di;
  const VF low = hn::Set(d, -87.3365402f), high = hn::Set(d, 88.3762512f);
  const auto k = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
  const VF kf = hn::ConvertTo(d, k);
  // ln 2 in two parts, the first short enough for an exact product.
  VF r = hn::NegMulAdd(kf, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(kf, hn::Set(d, -2.12194440e-4f), r);
  VF p = hn::Set(d, 0.00138146136659f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00836870981336f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416683873556f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.1666652069f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.499999934517f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(k, hn::Set(di, 127)));
  VF y = hn::Mul(p, hn::BitCast(d, power));
  y = hn::IfThenZeroElse(hn::Lt(x, low), y);
  return hn::IfThenElse(hn::Gt(x, high), hn::Inf(d), y);
}

// tanh x within 3 ulp.
HWY_INLINE VF tanh(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f), a = hn::Abs(x), z = hn::Mul(a, a);
  VF p = hn::Set(d, -0.00564831632216f);
  p = hn::MulAdd(p, z, hn::Set(d, 0.0205898265518f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.0537251267256f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.133312744356f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.333332760595f));
  const VF small = hn::MulAdd(hn::Mul(p, z), a, a);
  const VF e = exp(d, hn::Add(a, a));
  const VF big = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::CopySign(hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, big), x);
}

// erf x within 3 ulp.
HWY_INLINE VF erf(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f);
  const VF a = hn::Abs(x), z = hn::Mul(a, a);
  VF p = hn::Set(d, 7.85386409972e-5f);
  p = hn::MulAdd(p, z, hn::Set(d, -0.00080101944751f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.00518832778431f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.0268538119877f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.112835851499f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.376126258243f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.12837916573f));
  const VF small = hn::Mul(p, a);
  // 1 - exp(log erfc(a)), the logarithm fitted on [1, 4]; from 4 on erf rounds to 1.
  VF q = hn::Set(d, 0.000186378674911f);
  q = hn::MulAdd(q, a, hn::Set(d, -0.00294765342011f));
  q = hn::MulAdd(q, a, hn::Set(d, 0.0218380453194f));
  q = hn::MulAdd(q, a, hn::Set(d, -0.103106717444f));
  q = hn::MulAdd(q, a, hn::Set(d, -0.638144873228f));
  q = hn::MulAdd(q, a, hn::Set(d, -1.12708916725f));
  q = hn::MulAdd(q, a, hn::Set(d, -0.000341528307996f));
  VF big = hn::Sub(one, exp(d, q));
  big = hn::IfThenElse(hn::Gt(a, hn::Set(d, 4.0f)), one, big);
  return hn::CopySign(hn::IfThenElse(hn::Lt(a, one), small, big), x);
}

}  // namespace ds::kernels::HWY_NAMESPACE::simd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
