// The formulas of the optimizers on lanes. A rule is made from its constants and turns gradient,
// parameter and state lanes into their next values in place.
//
// Included once per instruction set, after simd-inl.h, inside kernel files.
#if defined(DS_KERNELS_RULES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_RULES_INL_H_
#undef DS_KERNELS_RULES_INL_H_
#else
#define DS_KERNELS_RULES_INL_H_
#endif

#include "kernels/optimizer/update.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE::rules {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// The constants as lanes; a rule uses some of them and the compiler drops the rest.
struct Constants {
  explicit Constants(const UpdateConstants& c)
      : grad_scale(hn::Set(DF(), c.grad_scale)),
        beta1(hn::Set(DF(), c.beta1)),
        one_minus_beta1(hn::Set(DF(), c.one_minus_beta1)),
        beta2(hn::Set(DF(), c.beta2)),
        one_minus_beta2(hn::Set(DF(), c.one_minus_beta2)),
        root_scale(hn::Set(DF(), c.root_scale)),
        eps(hn::Set(DF(), c.eps)),
        step_size(hn::Set(DF(), c.step_size)),
        grad_step(hn::Set(DF(), c.grad_step)),
        coupled(hn::Set(DF(), c.coupled_decay)),
        decoupled(hn::Set(DF(), c.decoupled_decay)),
        variant(c.variant) {}

  HWY_INLINE VF gradient(VF grad, VF p) const {
    return hn::MulAdd(coupled, p, hn::Mul(grad, grad_scale));
  }
  // p without the part that decays and without `update`.
  HWY_INLINE VF step(VF p, VF update) const { return hn::Sub(p, hn::MulAdd(decoupled, p, update)); }
  HWY_INLINE void moments(VF g, VF& mean, VF& square) const {
    mean = hn::MulAdd(beta1, mean, hn::Mul(one_minus_beta1, g));
    square = hn::MulAdd(beta2, square, hn::Mul(hn::Mul(one_minus_beta2, g), g));
  }

  VF grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, root_scale, eps, step_size,
      grad_step, coupled, decoupled;
  bool variant;
};

// a / b for b from 2^-126 to infinity.
HWY_INLINE VF over(DF d, VF a, VF b) {
  return hn::Mul(a, simd::reciprocal(d, simd::at_most(d, 0x1p126f, b)));
}

// m = beta1 m + one_minus_beta1 g; v = beta2 v + one_minus_beta2 g^2;
// p -= step_size m / (sqrt(v) root_scale + eps) + decoupled_decay p
struct Adam {
  static constexpr int kStates = 2;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  explicit Adam(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF d, VF grad, VF& p, VF& m, VF& v) const {
    c.moments(c.gradient(grad, p), m, v);
    const VF root = hn::MulAdd(simd::sqrt(d, v), c.root_scale, c.eps);
    p = c.step(p, over(d, hn::Mul(c.step_size, m), root));
  }
  Constants c;
};

// The same with most = max(most, v) in v's place.
struct Amsgrad {
  static constexpr int kStates = 3;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  explicit Amsgrad(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF d, VF grad, VF& p, VF& m, VF& v, VF& most) const {
    c.moments(c.gradient(grad, p), m, v);
    most = hn::Max(most, v);
    const VF root = hn::MulAdd(simd::sqrt(d, most), c.root_scale, c.eps);
    p = c.step(p, over(d, hn::Mul(c.step_size, m), root));
  }
  Constants c;
};

// p -= (step_size m + grad_step g) / (sqrt(v) root_scale + eps) + decoupled_decay p
struct Nadam {
  static constexpr int kStates = 2;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  explicit Nadam(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF d, VF grad, VF& p, VF& m, VF& v) const {
    const VF g = c.gradient(grad, p);
    c.moments(g, m, v);
    const VF root = hn::MulAdd(simd::sqrt(d, v), c.root_scale, c.eps);
    p = c.step(p, over(d, hn::MulAdd(c.step_size, m, hn::Mul(c.grad_step, g)), root));
  }
  Constants c;
};

// square = beta2 square + one_minus_beta2 g^2; centered: mean = beta2 mean + one_minus_beta2 g;
// u = g / (sqrt(square - mean^2) + eps); with momentum: u = buffer = beta1 buffer + u;
// p -= step_size u
template <bool kMomentum, bool kCentered>
struct Rmsprop {
  static constexpr int kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  explicit Rmsprop(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF d, VF grad, VF& p, VF& square, VF& second) const {
    if constexpr (kMomentum) {
      update(d, grad, p, square, second, second);
    } else {
      VF none = hn::Zero(d);
      update(d, grad, p, square, none, second);
    }
  }
  HWY_INLINE void operator()(DF d, VF grad, VF& p, VF& square, VF& buffer, VF& mean) const {
    update(d, grad, p, square, buffer, mean);
  }

 private:
  HWY_INLINE void update(DF d, VF grad, VF& p, VF& square, VF& buffer, VF& mean) const {
    const VF g = c.gradient(grad, p);
    square = hn::MulAdd(c.beta2, square, hn::Mul(hn::Mul(c.one_minus_beta2, g), g));
    VF variance = square;
    if constexpr (kCentered) {
      mean = hn::MulAdd(c.beta2, mean, hn::Mul(c.one_minus_beta2, g));
      // Rounding may leave less than nothing.
      variance = hn::ZeroIfNegative(hn::NegMulAdd(mean, mean, square));
    }
    VF u = over(d, g, hn::Add(simd::sqrt(d, variance), c.eps));
    if constexpr (kMomentum) u = buffer = hn::MulAdd(c.beta1, buffer, u);
    p = hn::NegMulAdd(c.step_size, u, p);
  }
  Constants c;
};

// g += coupled_decay p; sum += g^2; p -= step_size g / (sqrt(sum) + eps)
struct Adagrad {
  static constexpr int kStates = 1;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  explicit Adagrad(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF d, VF grad, VF& p, VF& sum, VF&) const {
    const VF g = c.gradient(grad, p);
    sum = hn::MulAdd(g, g, sum);
    p = hn::Sub(p, over(d, hn::Mul(c.step_size, g), hn::Add(simd::sqrt(d, sum), c.eps)));
  }
  Constants c;
};

// u = beta1 m + one_minus_beta1 g; p -= step_size sign(u) + decoupled_decay p; m = beta2 m +
// one_minus_beta2 g. The sign of zero is zero.
struct Lion {
  static constexpr int kStates = 1;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  explicit Lion(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF d, VF grad, VF& p, VF& m, VF&) const {
    const VF g = hn::Mul(grad, c.grad_scale);
    const VF u = hn::MulAdd(c.beta1, m, hn::Mul(c.one_minus_beta1, g));
    m = hn::MulAdd(c.beta2, m, hn::Mul(c.one_minus_beta2, g));
    const VF step = hn::IfThenZeroElse(hn::Eq(u, hn::Zero(d)), hn::CopySign(c.step_size, u));
    p = c.step(p, step);
  }
  Constants c;
};

// p -= step_size (g + coupled_decay p) + decoupled_decay p
struct Sgd {
  static constexpr int kStates = 0;
  static constexpr bool kWritesMaster = true, kWritesStates = false;
  explicit Sgd(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF, VF grad, VF& p, VF&, VF&) const {
    p = c.step(p, hn::Mul(c.step_size, c.gradient(grad, p)));
  }
  Constants c;
};

// b = beta1 b + one_minus_beta1 g; p -= step_size (Nesterov: g + beta1 b, else b)
struct Momentum {
  static constexpr int kStates = 1;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  explicit Momentum(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF, VF grad, VF& p, VF& b, VF&) const {
    const VF g = c.gradient(grad, p);
    b = hn::MulAdd(c.beta1, b, hn::Mul(c.one_minus_beta1, g));
    p = c.step(p, hn::Mul(c.step_size, c.variant ? hn::MulAdd(c.beta1, b, g) : b));
  }
  Constants c;
};

// The moments of Adam alone.
struct LambMoments {
  static constexpr int kStates = 2;
  static constexpr bool kWritesMaster = false, kWritesStates = true;
  explicit LambMoments(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF, VF grad, VF&, VF& m, VF& v) const {
    c.moments(hn::Mul(grad, c.grad_scale), m, v);
  }
  Constants c;
};

// u = m / (sqrt(v) + eps) + coupled_decay p, or m / sqrt(v + eps)
HWY_INLINE VF lamb_direction(DF d, const Constants& c, VF p, VF m, VF v) {
  const VF root = c.variant ? simd::sqrt(d, hn::Add(v, c.eps)) : hn::Add(simd::sqrt(d, v), c.eps);
  return hn::MulAdd(c.coupled, p, over(d, m, root));
}

// p -= step_size u, with the trust ratio in step_size
struct LambApply {
  static constexpr int kStates = 2;
  static constexpr bool kWritesMaster = true, kWritesStates = false;
  explicit LambApply(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF d, VF, VF& p, VF& m, VF& v) const {
    p = hn::NegMulAdd(c.step_size, lamb_direction(d, c, p, m, v), p);
  }
  Constants c;
};

// m = beta1 m + one_minus_beta1 g; p becomes the direction beta1 m + one_minus_beta1 g
struct MuonMomentum {
  static constexpr int kStates = 1;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  explicit MuonMomentum(const UpdateConstants& constants) : c(constants) {}
  HWY_INLINE void operator()(DF, VF grad, VF& p, VF& m, VF&) const {
    const VF g = hn::Mul(c.one_minus_beta1, hn::Mul(grad, c.grad_scale));
    m = hn::MulAdd(c.beta1, m, g);
    p = hn::MulAdd(c.beta1, m, g);
  }
  Constants c;
};

}  // namespace ds::kernels::HWY_NAMESPACE::rules
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
