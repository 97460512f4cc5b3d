// What Highway kernels share: float lanes loaded from and stored to fp32, bf16 or fp16 memory, sums
// of lanes, and functions of stated accuracy.
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
#if HWY_ARCH_X86
#include <immintrin.h>  // what Highway has no name for
#endif

// Marks lambdas with vector code: compiled for the target, and part of the loop that calls them.
#ifndef DS_SIMD_BODY
#define DS_SIMD_BODY HWY_ATTR __attribute__((always_inline))
#endif

// Functions of many operations. Each operation of the portable fallback is a loop over numbers in
// memory: where they are part of what calls them, gcc can take more than a minute for a file.
#undef DS_SIMD_CALL
#if HWY_TARGET == HWY_EMU128
#define DS_SIMD_CALL HWY_NOINLINE inline
#else
#define DS_SIMD_CALL HWY_INLINE
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

DS_SIMD_CALL VF load(DF d, const bfloat16* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

HWY_INLINE void store(VF v, DF d, float* p) { hn::StoreU(v, d, p); }

// The bits of base/bfloat16.h to_bfloat16 in the low half of each lane: round to nearest even, a
// NaN keeps its sign and upper payload and becomes quiet.
DS_SIMD_CALL hn::Vec<hn::RebindToUnsigned<DF>> bfloat16_bits(VF v) {
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu))));
  const auto quiet = hn::Or(upper, hn::Set(d32, 0x40u));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
}

DS_SIMD_CALL void store(VF v, DF, bfloat16* p) {
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

DS_SIMD_CALL VF half_to_float(DF d, VHalfBits bits) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
}
DS_SIMD_CALL VHalfBits half_bits(VF v) {
  return hn::BitCast(hn::Rebind<uint16_t, DF>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), v));
}
#endif

DS_SIMD_CALL VF load(DF d, const float16* p) {
#if DS_SIMD_HALF
  const hn::Rebind<uint16_t, DF> d16;
  return half_to_float(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())];
  for (int64_t i = 0; i < lanes(); ++i) buffer[i] = to_float(p[i]);
  return hn::Load(d, buffer);
#endif
}

DS_SIMD_CALL void store(VF v, DF d, float16* p) {
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

DS_SIMD_CALL VF load_n(DF d, const float* p, int64_t n) {
#if DS_SIMD_MASKS_32
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return hn::Load(d, buffer);
#endif
}

DS_SIMD_CALL VF load_n(DF d, const bfloat16* p, int64_t n) {
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

DS_SIMD_CALL VF load_n(DF d, const float16* p, int64_t n) {
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

DS_SIMD_CALL void store_n(VF v, DF d, float* p, int64_t n) {
#if DS_SIMD_MASKS_32
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, p);
#else
  HWY_ALIGN float buffer[hn::MaxLanes(DF())];
  hn::Store(v, d, buffer);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
#endif
}

DS_SIMD_CALL void store_n(VF v, DF, bfloat16* p, int64_t n) {
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

DS_SIMD_CALL void store_n(VF v, DF d, float16* p, int64_t n) {
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
DS_SIMD_CALL VF keep_n(DF d, VF v, int64_t n) {
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

// Asks for the line so many bytes behind p. Long bodies leave few loads in flight, and not every
// machine fetches ahead by itself; beyond the end of an array usually comes its next row.
template <uintptr_t kDistance = 4096>
HWY_INLINE void fetch_ahead(const void* p) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + kDistance));
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

DS_SIMD_CALL float sum_of_lanes(DF d, VF v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

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

DS_SIMD_CALL float max_of_lanes(DF d, VF v) { return hn::GetLane(hn::MaxOfLanes(d, v)); }

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
//
// AVX-512 divides and takes roots of 16 lanes in 16 to 20 cycles, so there they are estimates that
// a Newton step refines.

// v, or the bound where v is beyond it; NaN stays NaN.
DS_SIMD_CALL VF at_most(DF d, float bound, VF v) {
#if HWY_TARGET <= HWY_AVX2  // which returns the second of two numbers that do not compare
  return hn::Min(hn::Set(d, bound), v);
#else
  const VF b = hn::Set(d, bound);
  return hn::IfThenElse(hn::Gt(v, b), b, v);
#endif
}
DS_SIMD_CALL VF at_least(DF d, float bound, VF v) {
#if HWY_TARGET <= HWY_AVX2
  return hn::Max(hn::Set(d, bound), v);
#else
  const VF b = hn::Set(d, bound);
  return hn::IfThenElse(hn::Lt(v, b), b, v);
#endif
}

// c[0] x^k + ... + c[k]
template <class... Rest>
HWY_INLINE VF polynomial(DF d, VF x, float highest, Rest... lower) {
  VF p = hn::Set(d, highest);
  ((p = hn::MulAdd(p, x, hn::Set(d, lower))), ...);
  return p;
}

// The same through the even and the odd powers: one product more, but a chain of half the length,
// of which more fit into the CPU's window at once.
template <class... Rest>
HWY_INLINE VF polynomial_in_halves(DF d, VF x, float highest, float second, Rest... lower) {
  const VF x2 = hn::Mul(x, x);
  VF parts[2] = {hn::Set(d, highest), hn::Set(d, second)};
  size_t k = 0;
  ((parts[k % 2] = hn::MulAdd(parts[k % 2], x2, hn::Set(d, lower)), ++k), ...);
  constexpr size_t kLast = sizeof...(Rest) % 2;  // of the odd powers; the other ends with x^0
  return hn::MulAdd(parts[kLast], x, parts[1 - kLast]);
}

// 1 / v within 2 ulp, for v whose magnitude and reciprocal are normal numbers; NaN stays NaN.
HWY_INLINE VF reciprocal(DF d, VF v) {
#if HWY_TARGET <= HWY_AVX3
  const VF r = hn::ApproximateReciprocal(v);
  return hn::MulAdd(r, hn::NegMulAdd(v, r, hn::Set(d, 1.0f)), r);
#else
  return hn::Div(hn::Set(d, 1.0f), v);
#endif
}

// The same within 2^-14 of it.
HWY_INLINE VF rough_reciprocal(DF d, VF v) {
#if HWY_TARGET <= HWY_AVX3
  (void)d;
  return hn::ApproximateReciprocal(v);
#else
  return reciprocal(d, v);
#endif
}

// The square root within 1 ulp of normal numbers, zero and infinity; NaN of what has none.
DS_SIMD_CALL VF sqrt(DF d, VF v) {
#if HWY_TARGET <= HWY_AVX3
  const VF r = hn::ApproximateReciprocalSqrt(v), s = hn::Mul(v, r);
  const VF root = hn::MulAdd(hn::NegMulAdd(s, s, v), hn::Mul(r, hn::Set(d, 0.5f)), s);
  constexpr int kZeroOrInfinity = 0x0E;
  return VF{_mm512_mask_mov_ps(root.raw, _mm512_fpclass_ps_mask(v.raw, kZeroOrInfinity), v.raw)};
#else
  (void)d;
  return hn::Sqrt(v);
#endif
}

// 2^y up to 2^128, which is infinity: 2^floor(y) times a polynomial in the rest, of relative error
// 2^-26 (exact), 2^-23 (close), 2^-18 (rough) or 2^-13.7 (coarse), and its rounding. Subnormal
// results may be 0; NaN stays NaN.
enum class Exp2 { kExact, kClose, kRough, kCoarse };

template <Exp2 kKind>
DS_SIMD_CALL VF exp2(DF d, VF y) {
#if HWY_TARGET <= HWY_AVX3
  constexpr int kLessFloor = 0x09;
  const VF f{_mm512_reduce_ps(y.raw, kLessFloor)};
#else
  y = at_least(d, -127, at_most(d, 128, y));
  const VF whole = hn::Floor(y), f = hn::Sub(y, whole);
#endif
  VF p;
  if constexpr (kKind == Exp2::kExact) {
    p = polynomial(d, f, 0.000216180779f, 0.00124663755f, 0.00967560522f, 0.0554852076f,
                   0.240229324f, 0.693147063f, 1.0f);
  } else if constexpr (kKind == Exp2::kClose) {
    p = polynomial(d, f, 0.00186712085f, 0.0090170512f, 0.0557998978f, 0.240164459f, 0.693151295f,
                   1.0f);
  } else if constexpr (kKind == Exp2::kRough) {
    p = polynomial(d, f, 0.0134266838f, 0.0522424765f, 0.241280198f, 0.693044841f, 1.0f);
  } else {
    p = polynomial(d, f, 0.0780244207f, 0.226067304f, 0.695833495f, 0.99992522f);
  }
#if HWY_TARGET <= HWY_AVX3
  return VF{_mm512_scalef_ps(p.raw, y.raw)};
#else
  // 2^23 and more has a spacing of 1: the exponent stands in the low bits.
  const VF shifted = hn::Add(whole, hn::Set(d, 0x1.8p23f + 127));
  const hn::RebindToUnsigned<DF> d32;
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(d32, shifted))));
#endif
}

inline constexpr float kLog2e = 1.44269504f;

// e^x within 2 ulp of normal results. Below -87.7 it is 0, above 88.37 infinity; NaN stays NaN.
DS_SIMD_CALL VF exp(DF d, VF x) {
  x = at_least(d, -88.03f, at_most(d, 88.73f, x));
  // From 2^23 on the spacing is 1: the sum is rounded to a whole number, whose exponent stands in
  // the low bits.
  const VF magic = hn::Set(d, 0x1.8p23f + 127);
  const VF shifted = hn::MulAdd(x, hn::Set(d, kLog2e), magic);
  const VF k = hn::Sub(shifted, magic);
  // ln 2 in two parts, the first short enough for an exact product.
  VF r = hn::NegMulAdd(k, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(k, hn::Set(d, -2.12194440e-4f), r);
  const VF p = polynomial(d, r, 0.00138146136659f, 0.00836870981336f, 0.0416683873556f,
                          0.1666652069f, 0.499999934517f, 1.0f, 1.0f);
  const hn::RebindToUnsigned<DF> d32;
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(d32, shifted))));
}

// tanh x within 3 ulp.
DS_SIMD_CALL VF tanh(DF d, VF x) {
  const VF one = hn::Set(d, 1.0f), a = hn::Abs(x), z = hn::Mul(a, a);
  const VF p = polynomial(d, z, -0.00564831632216f, 0.0205898265518f, -0.0537251267256f,
                          0.133312744356f, -0.333332760595f);
  const VF small = hn::MulAdd(hn::Mul(p, z), a, a);
  const VF e = exp(d, at_most(d, 40, hn::Add(a, a)));
  const VF big = hn::NegMulAdd(hn::Set(d, 2.0f), reciprocal(d, hn::Add(e, one)), one);
  return hn::CopySign(hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, big), x);
}

}  // namespace ds::kernels::HWY_NAMESPACE::simd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
