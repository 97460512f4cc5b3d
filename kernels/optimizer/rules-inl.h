// The formulas of the optimizers, once for every processor. A rule turns a gradient, a parameter
// and states into their next values in place; what a number is and how it is computed with is up to
// the arithmetic A: the lanes of a CPU's vector (rules_simd-inl.h) or one element on a GPU
// (rules.cuh). Members of A by the names of UpdateConstants are numbers.
//
// Those two include it inside a namespace `rules` of their own, once per instruction set, and say
// with DS_RULE how functions are compiled.
//
// set_constants says what a rule's formula multiplies by, beside what update_constants sets for
// all.

// What most rules do; a rule says where it differs.
struct Rule {
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
};

template <class A, class N = typename A::Number>
DS_RULE N decayed_gradient(const A& a, N grad, N p) {
  return a.fma(a.coupled_decay, p, a.mul(grad, a.grad_scale));
}
// p without the part that decays and without `update`.
template <class A, class N = typename A::Number>
DS_RULE N moved(const A& a, N p, N update) {
  return a.sub(p, a.fma(a.decoupled_decay, p, update));
}
template <class A, class N = typename A::Number>
DS_RULE void moments(const A& a, N g, N& mean, N& square) {
  mean = a.fma(a.beta1, mean, a.mul(a.one_minus_beta1, g));
  square = a.fma(a.beta2, square, a.mul(a.mul(a.one_minus_beta2, g), g));
}

// m = beta1 m + one_minus_beta1 g; v = beta2 v + one_minus_beta2 g^2;
// p -= step_size m / (sqrt(v) root_scale + eps) + decoupled_decay p
struct Adam : Rule {
  static constexpr int kStates = 2;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& m, N& v) {
    update_moments(a, grad, p, m, v);
    p = moved(a, p, step(a, m, v));
  }
  // What comes before weights move.
  template <class A, class N = typename A::Number>
  static DS_RULE void update_moments(const A& a, N grad, N p, N& m, N& v) {
    moments(a, decayed_gradient(a, grad, p), m, v);
  }
  template <class A, class N = typename A::Number>
  static DS_RULE N step(const A& a, N m, N v) {
    const N root = a.fma(a.sqrt(v), a.root_scale, a.eps);
    return a.over(a.mul(a.step_size, m), root);
  }
  static void set_constants(const UpdateHyper& hyper, UpdateConstants& c) {
    c.root_scale = static_cast<float>(1 / std::sqrt(bias_correction(hyper, hyper.beta2)));
    c.step_size = static_cast<float>(hyper.lr / bias_correction(hyper, hyper.beta1));
    set_decay(hyper, hyper.decoupled, c);
  }
};

// The same with most = max(most, v) in v's place.
struct Amsgrad : Adam {
  static constexpr int kStates = 3;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& m, N& v, N& most) {
    moments(a, decayed_gradient(a, grad, p), m, v);
    most = a.max(most, v);
    const N root = a.fma(a.sqrt(most), a.root_scale, a.eps);
    p = moved(a, p, a.over(a.mul(a.step_size, m), root));
  }
};

// p -= (step_size m + grad_step g) / (sqrt(v) root_scale + eps) + decoupled_decay p
struct Nadam : Rule {
  static constexpr int kStates = 2;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& m, N& v) {
    const N g = decayed_gradient(a, grad, p);
    moments(a, g, m, v);
    const N root = a.fma(a.sqrt(v), a.root_scale, a.eps);
    p = moved(a, p, a.over(a.fma(a.step_size, m, a.mul(a.grad_step, g)), root));
  }
  static void set_constants(const UpdateHyper& hyper, UpdateConstants& c) {
    const double now = nadam_momentum(hyper.beta1, hyper.momentum_decay, hyper.step);
    const double next = nadam_momentum(hyper.beta1, hyper.momentum_decay, hyper.step + 1);
    c.root_scale = static_cast<float>(1 / std::sqrt(one_minus_power(hyper.beta2, hyper.step)));
    c.step_size = static_cast<float>(hyper.lr * next / (1 - hyper.momentum_product * next));
    c.grad_step = static_cast<float>(hyper.lr * (1 - now) / (1 - hyper.momentum_product));
    set_decay(hyper, hyper.decoupled, c);
  }
};

// square = beta2 square + one_minus_beta2 g^2; centered: mean = beta2 mean + one_minus_beta2 g;
// u = g / (sqrt(square - mean^2) + eps); with momentum: u = buffer = beta1 buffer + u;
// p -= step_size u
template <bool kMomentum, bool kCentered>
struct Rmsprop : Rule {
  static constexpr int kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& square, N& second) {
    N none = a.zero();
    apply(a, grad, p, square, kMomentum ? second : none, second);
  }
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& square, N& buffer, N& mean) {
    const N g = decayed_gradient(a, grad, p);
    square = a.fma(a.beta2, square, a.mul(a.mul(a.one_minus_beta2, g), g));
    N variance = square;
    if constexpr (kCentered) {
      mean = a.fma(a.beta2, mean, a.mul(a.one_minus_beta2, g));
      // Rounding may leave less than nothing.
      variance = a.zero_if_negative(a.minus_product(square, mean, mean));
    }
    N u = a.over(g, a.add(a.sqrt(variance), a.eps));
    if constexpr (kMomentum) u = buffer = a.fma(a.beta1, buffer, u);
    p = a.minus_product(p, a.step_size, u);
  }
  static void set_constants(const UpdateHyper& hyper, UpdateConstants& c) {
    set_decay(hyper, false, c);
  }
};

// g += coupled_decay p; sum += g^2; p -= step_size g / (sqrt(sum) + eps)
struct Adagrad : Rule {
  static constexpr int kStates = 1;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& sum, N&) {
    const N g = decayed_gradient(a, grad, p);
    sum = a.fma(g, g, sum);
    p = a.sub(p, a.over(a.mul(a.step_size, g), a.add(a.sqrt(sum), a.eps)));
  }
  static void set_constants(const UpdateHyper& hyper, UpdateConstants& c) {
    const auto earlier = static_cast<double>(hyper.step - 1);
    c.step_size = static_cast<float>(hyper.lr / (1 + earlier * hyper.lr_decay));
    set_decay(hyper, false, c);
  }
};

// u = beta1 m + one_minus_beta1 g; p -= step_size sign(u) + decoupled_decay p; m = beta2 m +
// one_minus_beta2 g. The sign of zero is zero.
struct Lion : Rule {
  static constexpr int kStates = 1;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& m, N&) {
    const N g = a.mul(grad, a.grad_scale);
    const N u = a.fma(a.beta1, m, a.mul(a.one_minus_beta1, g));
    m = a.fma(a.beta2, m, a.mul(a.one_minus_beta2, g));
    p = moved(a, p, a.with_sign_of(a.step_size, u));
  }
  static void set_constants(const UpdateHyper& hyper, UpdateConstants& c) {
    set_decay(hyper, true, c);
  }
};

// p -= step_size (g + coupled_decay p) + decoupled_decay p
struct Sgd : Rule {
  static constexpr int kStates = 0;
  static constexpr bool kWritesStates = false;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N&, N&) {
    p = moved(a, p, a.mul(a.step_size, decayed_gradient(a, grad, p)));
  }
  static void set_constants(const UpdateHyper& hyper, UpdateConstants& c) {
    set_decay(hyper, false, c);
  }
};

// b = beta1 b + one_minus_beta1 g; p -= step_size (Nesterov: g + beta1 b, else b)
struct Momentum : Rule {
  static constexpr int kStates = 1;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& b, N&) {
    const N g = decayed_gradient(a, grad, p);
    b = a.fma(a.beta1, b, a.mul(a.one_minus_beta1, g));
    p = moved(a, p, a.mul(a.step_size, a.variant ? a.fma(a.beta1, b, g) : b));
  }
  static void set_constants(const UpdateHyper& hyper, UpdateConstants& c) {
    set_decay(hyper, false, c);
    c.variant = hyper.nesterov;
    // The first gradient fills the buffer as it is; without momentum every one does.
    const bool damped = hyper.step > 1 && hyper.beta1 != 0;
    c.one_minus_beta1 = damped ? static_cast<float>(1 - hyper.dampening) : 1;
  }
};

// The moments of Adam alone.
struct LambMoments : Rule {
  static constexpr int kStates = 2;
  static constexpr bool kReadsMaster = false, kWritesMaster = false;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N&, N& m, N& v) {
    moments(a, a.mul(grad, a.grad_scale), m, v);
  }
  static void set_constants(const UpdateHyper& hyper, UpdateConstants& c) {
    const double c1 = bias_correction(hyper, hyper.beta1);
    const double c2 = bias_correction(hyper, hyper.beta2);
    c.step_size = static_cast<float>(hyper.lr * std::sqrt(c2) / c1);
    c.variant = hyper.eps_inside_sqrt;
    set_decay(hyper, false, c);
  }
};

// u = m / (sqrt(v) + eps) + coupled_decay p, or m / sqrt(v + eps)
template <class A, class N = typename A::Number>
DS_RULE N lamb_direction(const A& a, N p, N m, N v) {
  const N root = a.variant ? a.sqrt(a.add(v, a.eps)) : a.add(a.sqrt(v), a.eps);
  return a.fma(a.coupled_decay, p, a.over(m, root));
}

// p -= step_size u, with the trust ratio in step_size
struct LambApply : LambMoments {
  static constexpr bool kReadsGrad = false, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = false;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N, N& p, N& m, N& v) {
    p = a.minus_product(p, a.step_size, lamb_direction(a, p, m, v));
  }
};

// m = beta1 m + one_minus_beta1 g; p becomes the direction beta1 m + one_minus_beta1 g
struct MuonMomentum : Rule {
  static constexpr int kStates = 1;
  static constexpr bool kReadsMaster = false;
  template <class A, class N = typename A::Number>
  static DS_RULE void apply(const A& a, N grad, N& p, N& m, N&) {
    const N g = a.mul(a.one_minus_beta1, a.mul(grad, a.grad_scale));
    m = a.fma(a.beta1, m, g);
    p = a.fma(a.beta1, m, g);
  }
  static void set_constants(const UpdateHyper&, UpdateConstants&) {}
};

// visit(Adam()) for UpdateRule::kAdam, and so on.
template <class Visit>
auto visit_rule(UpdateRule rule, const Visit& visit) {
  switch (rule) {
    case UpdateRule::kAdam:
      return visit(Adam());
    case UpdateRule::kAdagrad:
      return visit(Adagrad());
    case UpdateRule::kLion:
      return visit(Lion());
    case UpdateRule::kSgd:
      return visit(Sgd());
    case UpdateRule::kMomentum:
      return visit(Momentum());
    case UpdateRule::kLambMoments:
      return visit(LambMoments());
    case UpdateRule::kLambApply:
      return visit(LambApply());
    case UpdateRule::kMuonMomentum:
      return visit(MuonMomentum());
    case UpdateRule::kAmsgrad:
      return visit(Amsgrad());
    case UpdateRule::kNadam:
      return visit(Nadam());
    case UpdateRule::kRmsprop:
      return visit(Rmsprop<false, false>());
    case UpdateRule::kRmspropMomentum:
      return visit(Rmsprop<true, false>());
    case UpdateRule::kRmspropCentered:
      return visit(Rmsprop<false, true>());
    default:
      return visit(Rmsprop<true, true>());
  }
}
