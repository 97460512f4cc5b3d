// The rules of the optimizers on lanes: the arithmetic that rules-inl.h asks for.
//
// Included once per instruction set, after simd-inl.h, inside kernel files.
#if defined(DS_KERNELS_RULES_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_RULES_SIMD_INL_H_
#undef DS_KERNELS_RULES_SIMD_INL_H_
#else
#define DS_KERNELS_RULES_SIMD_INL_H_
#endif

#include "kernels/optimizer/update.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE::rules {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// A rule uses some of the constants, and the compiler drops the rest.
struct Lanes {
  using Number = VF;
  explicit Lanes(const UpdateConstants& c)
      : grad_scale(hn::Set(DF(), c.grad_scale)),
        beta1(hn::Set(DF(), c.beta1)),
        one_minus_beta1(hn::Set(DF(), c.one_minus_beta1)),
        beta2(hn::Set(DF(), c.beta2)),
        one_minus_beta2(hn::Set(DF(), c.one_minus_beta2)),
        root_scale(hn::Set(DF(), c.root_scale)),
        eps(hn::Set(DF(), c.eps)),
        step_size(hn::Set(DF(), c.step_size)),
        grad_step(hn::Set(DF(), c.grad_step)),
        coupled_decay(hn::Set(DF(), c.coupled_decay)),
        decoupled_decay(hn::Set(DF(), c.decoupled_decay)),
        variant(c.variant) {}

  static HWY_INLINE VF zero() { return hn::Zero(DF()); }
  static HWY_INLINE VF add(VF a, VF b) { return hn::Add(a, b); }
  static HWY_INLINE VF sub(VF a, VF b) { return hn::Sub(a, b); }
  static HWY_INLINE VF mul(VF a, VF b) { return hn::Mul(a, b); }
  static HWY_INLINE VF fma(VF a, VF b, VF c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE VF minus_product(VF a, VF b, VF c) { return hn::NegMulAdd(b, c, a); }
  static HWY_INLINE VF max(VF a, VF b) { return hn::Max(a, b); }
  static HWY_INLINE VF sqrt(VF a) { return simd::sqrt(DF(), a); }
  static HWY_INLINE VF zero_if_negative(VF a) { return hn::ZeroIfNegative(a); }
  // a, with the sign of b; zero where b is.
  static HWY_INLINE VF with_sign_of(VF a, VF b) {
    return hn::IfThenZeroElse(hn::Eq(b, zero()), hn::CopySign(a, b));
  }
  // a / b for b from 2^-126 to infinity.
  static HWY_INLINE VF over(VF a, VF b) {
    return hn::Mul(a, simd::reciprocal(DF(), simd::at_most(DF(), 0x1p126f, b)));
  }

  VF grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, root_scale, eps, step_size,
      grad_step, coupled_decay, decoupled_decay;
  bool variant;
};

#define DS_RULE HWY_INLINE
#include "kernels/optimizer/rules-inl.h"
#undef DS_RULE

}  // namespace ds::kernels::HWY_NAMESPACE::rules
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
