// The formulas of the optimizers in device code: those of rules-inl.h, element by element. A rule
// turns gradient, parameter and states into their next values in place.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/optimizer/update.h"

namespace ds::kernels::rules {

__device__ __forceinline__ float gradient(const UpdateConstants& c, float grad, float p) {
  return fmaf(c.coupled_decay, p, grad * c.grad_scale);
}
// p without the part that decays and without `update`.
__device__ __forceinline__ float step(const UpdateConstants& c, float p, float update) {
  return p - fmaf(c.decoupled_decay, p, update);
}
__device__ __forceinline__ void moments(const UpdateConstants& c, float g, float& mean,
                                        float& square) {
  mean = fmaf(c.beta1, mean, c.one_minus_beta1 * g);
  square = fmaf(c.beta2, square, c.one_minus_beta2 * g * g);
}
// a / b for b from 2^-126 to infinity.
__device__ __forceinline__ float over(float a, float b) {
  return a * __frcp_rn(b > 0x1p126f ? 0x1p126f : b);
}

struct Adam {
  static constexpr int kStates = 2;
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& m, float& v) {
    moments(c, gradient(c, grad, p), m, v);
    p = step(c, p, over(c.step_size * m, fmaf(__fsqrt_rn(v), c.root_scale, c.eps)));
  }
};

struct Amsgrad {
  static constexpr int kStates = 3;
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& m, float& v, float& most) {
    moments(c, gradient(c, grad, p), m, v);
    most = fmaxf(most, v);
    p = step(c, p, over(c.step_size * m, fmaf(__fsqrt_rn(most), c.root_scale, c.eps)));
  }
};

struct Nadam {
  static constexpr int kStates = 2;
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& m, float& v) {
    const float g = gradient(c, grad, p);
    moments(c, g, m, v);
    p = step(c, p,
             over(fmaf(c.step_size, m, c.grad_step * g), fmaf(__fsqrt_rn(v), c.root_scale, c.eps)));
  }
};

template <bool kMomentum, bool kCentered>
struct Rmsprop {
  static constexpr int kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& square, float& second) {
    float none = 0;
    apply(c, grad, p, square, kMomentum ? second : none, second);
  }
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& square, float& buffer, float& mean) {
    const float g = gradient(c, grad, p);
    square = fmaf(c.beta2, square, c.one_minus_beta2 * g * g);
    float variance = square;
    if constexpr (kCentered) {
      mean = fmaf(c.beta2, mean, c.one_minus_beta2 * g);
      variance = fmaf(-mean, mean, square);
      variance = variance < 0 ? 0.0f : variance;  // which keeps NaN
    }
    float u = over(g, __fsqrt_rn(variance) + c.eps);
    if constexpr (kMomentum) u = buffer = fmaf(c.beta1, buffer, u);
    p = fmaf(-c.step_size, u, p);
  }
};

struct Adagrad {
  static constexpr int kStates = 1;
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& sum, float&) {
    const float g = gradient(c, grad, p);
    sum = fmaf(g, g, sum);
    p -= over(c.step_size * g, __fsqrt_rn(sum) + c.eps);
  }
};

struct Lion {
  static constexpr int kStates = 1;
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& m, float&) {
    const float g = grad * c.grad_scale;
    const float u = fmaf(c.beta1, m, c.one_minus_beta1 * g);
    m = fmaf(c.beta2, m, c.one_minus_beta2 * g);
    p = step(c, p, u == 0 ? 0.0f : copysignf(c.step_size, u));
  }
};

struct Sgd {
  static constexpr int kStates = 0;
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = false;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float&, float&) {
    p = step(c, p, c.step_size * gradient(c, grad, p));
  }
};

struct Momentum {
  static constexpr int kStates = 1;
  static constexpr bool kReadsGrad = true, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& b, float&) {
    const float g = gradient(c, grad, p);
    b = fmaf(c.beta1, b, c.one_minus_beta1 * g);
    p = step(c, p, c.step_size * (c.variant ? fmaf(c.beta1, b, g) : b));
  }
};

struct LambMoments {
  static constexpr int kStates = 2;
  static constexpr bool kReadsGrad = true, kReadsMaster = false;
  static constexpr bool kWritesMaster = false, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float&,
                                               float& m, float& v) {
    moments(c, grad * c.grad_scale, m, v);
  }
};

__device__ __forceinline__ float lamb_direction(const UpdateConstants& c, float p, float m,
                                                float v) {
  const float root = c.variant ? __fsqrt_rn(v + c.eps) : __fsqrt_rn(v) + c.eps;
  return fmaf(c.coupled_decay, p, over(m, root));
}

struct LambApply {
  static constexpr int kStates = 2;
  static constexpr bool kReadsGrad = false, kReadsMaster = true;
  static constexpr bool kWritesMaster = true, kWritesStates = false;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float, float& p, float& m,
                                               float& v) {
    p = fmaf(-c.step_size, lamb_direction(c, p, m, v), p);
  }
};

struct MuonMomentum {
  static constexpr int kStates = 1;
  static constexpr bool kReadsGrad = true, kReadsMaster = false;
  static constexpr bool kWritesMaster = true, kWritesStates = true;
  static __device__ __forceinline__ void apply(const UpdateConstants& c, float grad, float& p,
                                               float& m, float&) {
    const float g = c.one_minus_beta1 * (grad * c.grad_scale);
    m = fmaf(c.beta1, m, g);
    p = fmaf(c.beta1, m, g);
  }
};

}  // namespace ds::kernels::rules
