// Activation functions by the vector: value(d, v), and value and derivative at once for little more
// than one of them. Included once per SIMD target.
//
// Values have an absolute error of a few units of roundoff of |v|, derivatives of a few units of
// their largest value; neither is spoilt by large arguments. Rough functions, for results that are
// rounded to bf16, are within 2^-12 of the value and 2^-13 of the largest derivative instead.
#if defined(DS_KERNELS_ACTIVATION_FUNCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_ACTIVATION_FUNCTIONS_INL_H_
#undef DS_KERNELS_ACTIVATION_FUNCTIONS_INL_H_
#else
#define DS_KERNELS_ACTIVATION_FUNCTIONS_INL_H_
#endif

#include "kernels/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

struct ValueAndDerivative {
  VF value, derivative;
};

// Beyond 100 all derivatives are 0 or 1 in fp32; limiting v there keeps squares finite. NaN stays.
DS_SIMD_CALL VF limited(DF d, VF v) { return simd::at_least(d, -100, simd::at_most(d, 100, v)); }

template <bool kRough>
DS_SIMD_CALL VF exp2(DF d, VF y) {
  return simd::exp2 < kRough ? simd::Exp2::kRough : simd::Exp2::kClose > (d, y);
}

// exp2 for sums with 1 that are inverted roughly: what must not overflow elsewhere may become
// infinite where an estimate makes zero of that. Powers below the normal numbers, which AVX-512
// takes 100 ns for, are cut off.
DS_SIMD_CALL VF inverted_exp2(DF d, VF y) {
  y = simd::at_least(d, -126, y);
#if HWY_TARGET > HWY_AVX3
  y = simd::at_most(d, 126, y);
#endif
  return simd::exp2<simd::Exp2::kCoarse>(d, y);
}

// v / (1 + 2^y), where y grows with -v beyond all bounds.
DS_SIMD_CALL VF rough_swish(DF d, VF v, VF y) {
  return hn::Mul(v, simd::rough_reciprocal(d, hn::Add(hn::Set(d, 1.0f), inverted_exp2(d, y))));
}

// What lies between 0 and 1 almost everywhere and is symmetric about (0, 1/2): 1/2 + v p(t) with
// t = 2 (v / kEdge)^2 - 1, 0 or 1 from kEdge on. Coefficients of p from the highest.
inline constexpr float kEdge = 4.6f;
template <class... Coefficients>
DS_SIMD_CALL VF rough_step(DF d, VF v, Coefficients... p) {
  const VF x = simd::at_least(d, -kEdge, simd::at_most(d, kEdge, v));
  const VF t = hn::MulSub(hn::Mul(x, x), hn::Set(d, 2 / (kEdge * kEdge)), hn::Set(d, 1.0f));
  return hn::MulAdd(x, simd::polynomial_in_halves(d, t, p...), hn::Set(d, 0.5f));
}

// 1 / v for v from 1 on.
template <bool kRough>
DS_SIMD_CALL VF inverse(DF d, VF v) {
  return kRough ? simd::rough_reciprocal(d, v) : simd::reciprocal(d, v);
}

// v * sigmoid(w) with w = Inner(v): one exponential, and no cancellation for negative v. Inner
// gives -w log2 e, whose power of 2 is exp(-w); 2^126 has a normal reciprocal, and makes what
// belongs to it vanish.
template <class Inner>
struct Swish {
  template <bool kRough>
  static DS_SIMD_CALL VF value(DF d, VF v) {
    VF y = Inner::exponent(d, v, hn::Mul(v, v));
    if constexpr (kRough) return rough_swish(d, v, y);
    y = simd::at_most(d, 126, y);
    return hn::Mul(v, inverse<kRough>(d, hn::Add(hn::Set(d, 1.0f), exp2<kRough>(d, y))));
  }
  template <bool kRough>
  static DS_SIMD_CALL ValueAndDerivative both(DF d, VF v) {
    const VF x = limited(d, v), x2 = hn::Mul(x, x);
    const VF y = simd::at_most(d, 126, Inner::exponent(d, x, x2));
    const VF e = exp2<kRough>(d, y);
    const VF s = inverse<kRough>(d, hn::Add(hn::Set(d, 1.0f), e));
    const VF rest = hn::Mul(s, hn::Mul(s, e));  // s (1 - s), without cancellation
    return {hn::Mul(v, s), hn::MulAdd(hn::Mul(x, rest), Inner::slope(d, x2), s)};
  }
};

struct Identity {
  static HWY_INLINE VF exponent(DF d, VF v, VF) { return hn::Mul(v, hn::Set(d, -simd::kLog2e)); }
  static HWY_INLINE VF slope(DF d, VF) { return hn::Set(d, 1.0f); }
};
using Silu = Swish<Identity>;

// w = 2 u with u = sqrt(2/pi) (v + 0.044715 v^3), since (1 + tanh u) / 2 = sigmoid(2 u).
struct GeluTanhInner {
  static constexpr float kTwiceSlope = 1.5957691216f;  // 2 sqrt(2/pi)
  static constexpr float kExponent = -2.3022081987f;   // the same times -log2 e
  static constexpr float kCubic = 0.044715f;
  static HWY_INLINE VF exponent(DF d, VF v, VF v2) {
    return hn::Mul(v, hn::MulAdd(v2, hn::Set(d, kExponent * kCubic), hn::Set(d, kExponent)));
  }
  static HWY_INLINE VF slope(DF d, VF v2) {
    return hn::MulAdd(v2, hn::Set(d, 3 * kTwiceSlope * kCubic), hn::Set(d, kTwiceSlope));
  }
};
struct GeluTanh : Swish<GeluTanhInner> {
  // The rough polynomial is within 2^-15.
  template <bool kRough>
  static DS_SIMD_CALL VF derivative(DF d, VF v) {
    if constexpr (!kRough) return both<kRough>(d, v).derivative;
    return rough_step(d, v, 0.0193525143f, -0.0450488254f, 0.030776551f, -0.0243646242f,
                      0.0667292699f, -0.0981901735f, 0.0979361832f, -0.0905140787f, 0.0830180645f,
                      -0.0864181593f, 0.155418932f);
  }
};

// v * Phi(v), the normal distribution function. With a = |v| and t = 1 / (1 + 0.35 a), Phi(-a) is
// exp(-a^2/2) times a polynomial in t, whose error times exp(-a^2/4) is below 2^-24.
struct GeluErf {
  struct Normal {
    VF a, bell, cumulative;  // bell = exp(-a^2/2)
  };
  template <bool kRough>
  static DS_SIMD_CALL Normal normal(DF d, VF v) {
    const VF a = simd::at_most(d, 100, hn::Abs(v));
    const VF y = hn::Mul(hn::Mul(a, hn::Set(d, -0.5f * simd::kLog2e)), a);
    const VF bell = exp2<kRough>(d, y);
    const VF one = hn::Set(d, 1.0f);
    const VF t = inverse<kRough>(d, hn::MulAdd(a, hn::Set(d, 0.35f), one));
    const VF ratio = simd::polynomial(d, t, 0.0431523286f, -0.280090481f, 0.589944839f,
                                      -0.263429731f, 0.305096865f, 0.101685353f, 0.00364081189f);
    const VF tail = hn::Mul(bell, ratio);
    return {a, bell, hn::IfThenElse(hn::Lt(v, hn::Zero(d)), tail, hn::Sub(one, tail))};
  }
  // Roughly, Phi(v) is the sigmoid of an odd polynomial: its error is below 2^-13.5 of Phi(v), or
  // below 2^-22 where that is more.
  template <bool kRough>
  static DS_SIMD_CALL VF value(DF d, VF v) {
    if constexpr (!kRough) return hn::Mul(v, normal<kRough>(d, v).cumulative);
    return rough_swish(
        d, v,
        hn::Mul(v, simd::polynomial(d, hn::Mul(v, v), -2.14168774e-06f, 6.10584522e-05f,
                                    0.000572093693f, -0.105803513f, -2.30163328f)));
  }
  // The rough polynomial is within 2^-14.
  template <bool kRough>
  static DS_SIMD_CALL VF derivative(DF d, VF v) {
    if constexpr (!kRough) return both<kRough>(d, v).derivative;
    return rough_step(d, v, 0.00608277647f, -0.0337232985f, 0.0533817336f, -0.0421048813f,
                      0.0554262921f, -0.0924752653f, 0.101161204f, -0.0897756666f, 0.0815604925f,
                      -0.0864059255f, 0.155568182f);
  }
  template <bool kRough>
  static DS_SIMD_CALL ValueAndDerivative both(DF d, VF v) {
    const Normal n = normal<kRough>(d, v);
    const VF density = hn::Mul(n.bell, hn::Set(d, 0.39894228040f));  // 1 / sqrt(2 pi)
    return {hn::Mul(v, n.cumulative), hn::MulAdd(hn::CopySign(n.a, v), density, n.cumulative)};
  }
};

struct Relu {
  // Not a maximum: a NaN stays one.
  template <bool kRough>
  static DS_SIMD_CALL VF value(DF d, VF v) {
    return hn::IfThenZeroElse(hn::Le(v, hn::Zero(d)), v);
  }
  template <bool kRough>
  static DS_SIMD_CALL ValueAndDerivative both(DF d, VF v) {
    return {value<kRough>(d, v), hn::IfThenZeroElse(hn::Le(v, hn::Zero(d)), hn::Set(d, 1.0f))};
  }
};

struct Tanh {
  template <bool kRough>
  static DS_SIMD_CALL VF value(DF d, VF v) {
    return simd::tanh(d, v);
  }
  // 4 e / (1 + e)^2 with e = exp(-2 |v|): 1 - tanh^2 without cancellation.
  template <bool kRough>
  static DS_SIMD_CALL ValueAndDerivative both(DF d, VF v) {
    const VF e = exp2<kRough>(d, hn::Mul(hn::Set(d, -2 * simd::kLog2e), hn::Abs(v)));
    const VF r = inverse<kRough>(d, hn::Add(hn::Set(d, 1.0f), e));
    return {value<kRough>(d, v), hn::Mul(hn::Mul(hn::Set(d, 4.0f), e), hn::Mul(r, r))};
  }
};

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
