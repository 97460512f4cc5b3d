// Activation functions by the vector: value(d, v), derivative(d, v), and both at once for little
// more than one of them. Included once per SIMD target.
//
// Values have an absolute error of a few units of roundoff of |v|, derivatives of a few units of
// their largest value; neither is spoilt by large arguments.
#if defined(DS_KERNELS_ACTIVATION_FUNCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_ACTIVATION_FUNCTIONS_INL_H_
#undef DS_KERNELS_ACTIVATION_FUNCTIONS_INL_H_
#else
#define DS_KERNELS_ACTIVATION_FUNCTIONS_INL_H_
#endif

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

struct ValueAndDerivative {
  VF value, derivative;
};

// Beyond 100 all derivatives are 0 or 1 in fp32; limiting v there keeps squares finite.
HWY_INLINE VF limited(DF d, VF v) {
  const VF limit = hn::Set(d, 100.0f);
  return hn::IfThenElse(hn::Gt(hn::Abs(v), limit), hn::CopySign(limit, v), v);
}

// v * sigmoid(Inner(v)): one exponential, and no cancellation for negative v.
template <class Inner>
struct Swish {
  static HWY_INLINE VF value(DF d, VF v) {
    const VF e = simd::exp(d, hn::Neg(Inner::value(d, v, hn::Mul(v, v))));
    return hn::Div(v, hn::Add(hn::Set(d, 1.0f), e));
  }
  static HWY_INLINE ValueAndDerivative both(DF d, VF v) {
    const VF one = hn::Set(d, 1.0f), lowest = hn::Set(d, -87.0f);  // its exponential is finite
    const VF x = limited(d, v), x2 = hn::Mul(x, x);
    VF w = Inner::value(d, x, x2);
    const auto vanishes = hn::Lt(w, lowest);
    w = hn::IfThenElse(vanishes, lowest, w);
    const VF e = simd::exp(d, hn::Neg(w));
    const VF s = hn::Div(one, hn::Add(one, e));
    const VF rest = hn::Mul(s, hn::Mul(s, e));  // s (1 - s), without cancellation
    return {hn::IfThenZeroElse(vanishes, hn::Mul(v, s)),
            hn::MulAdd(hn::Mul(x, rest), Inner::slope(d, x2), s)};
  }
  static HWY_INLINE VF derivative(DF d, VF v) { return both(d, v).derivative; }
};

struct Identity {
  static HWY_INLINE VF value(DF, VF v, VF) { return v; }
  static HWY_INLINE VF slope(DF d, VF) { return hn::Set(d, 1.0f); }
};
using Silu = Swish<Identity>;

// 2 u with u = sqrt(2/pi) (v + 0.044715 v^3), since (1 + tanh u) / 2 = sigmoid(2 u).
struct GeluTanhInner {
  static constexpr float kTwiceSlope = 1.5957691216f;  // 2 sqrt(2/pi)
  static constexpr float kCubic = 0.044715f;
  static HWY_INLINE VF value(DF d, VF v, VF v2) {
    return hn::Mul(v, hn::MulAdd(v2, hn::Set(d, kTwiceSlope * kCubic), hn::Set(d, kTwiceSlope)));
  }
  static HWY_INLINE VF slope(DF d, VF v2) {
    return hn::MulAdd(v2, hn::Set(d, 3 * kTwiceSlope * kCubic), hn::Set(d, kTwiceSlope));
  }
};
using GeluTanh = Swish<GeluTanhInner>;

struct GeluErf {
  static HWY_INLINE VF cumulative(DF d, VF v) {
    const VF half = hn::Set(d, 0.5f), sqrt_half = hn::Set(d, 0.70710678119f);
    return hn::MulAdd(simd::erf(d, hn::Mul(v, sqrt_half)), half, half);
  }
  static HWY_INLINE VF value(DF d, VF v) { return hn::Mul(v, cumulative(d, v)); }
  static HWY_INLINE ValueAndDerivative both(DF d, VF v) {
    const VF x = limited(d, v), c = cumulative(d, x);
    const VF density = hn::Mul(hn::Set(d, 0.39894228040f),  // 1 / sqrt(2 pi)
                               simd::exp(d, hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f))));
    return {hn::Mul(v, c), hn::MulAdd(x, density, c)};
  }
  static HWY_INLINE VF derivative(DF d, VF v) { return both(d, v).derivative; }
};

struct Relu {
  // Not a maximum: a NaN stays one.
  static HWY_INLINE VF value(DF d, VF v) { return hn::IfThenZeroElse(hn::Le(v, hn::Zero(d)), v); }
  static HWY_INLINE VF derivative(DF d, VF v) {
    return hn::IfThenZeroElse(hn::Le(v, hn::Zero(d)), hn::Set(d, 1.0f));
  }
  static HWY_INLINE ValueAndDerivative both(DF d, VF v) { return {value(d, v), derivative(d, v)}; }
};

struct Tanh {
  static HWY_INLINE VF value(DF d, VF v) { return simd::tanh(d, v); }
  // 4 e / (1 + e)^2 with e = exp(-2 |v|): 1 - tanh^2 without cancellation.
  static HWY_INLINE VF derivative(DF d, VF v) {
    const VF e = simd::exp(d, hn::Mul(hn::Set(d, -2.0f), hn::Abs(v)));
    const VF sum = hn::Add(hn::Set(d, 1.0f), e);
    return hn::Div(hn::Mul(hn::Set(d, 4.0f), e), hn::Mul(sum, sum));
  }
  static HWY_INLINE ValueAndDerivative both(DF d, VF v) { return {value(d, v), derivative(d, v)}; }
};

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
