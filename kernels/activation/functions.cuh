// Activation functions in device code, by the formulas of functions-inl.h: value(v), and value and
// derivative at once.
#pragma once

#include "kernels/activation/activation.h"
#include "kernels/cuda/device.cuh"

namespace ds::kernels::cuda {

struct ValueAndSlope {
  float value, slope;
};

inline constexpr float kLog2e = 1.44269504089f;

// Like fminf and fmaxf, but a NaN stays one.
__device__ __forceinline__ float at_most(float limit, float v) { return v > limit ? limit : v; }
__device__ __forceinline__ float at_least(float limit, float v) { return v < limit ? limit : v; }

// Beyond 100 all derivatives are 0 or 1 in fp32; limiting v there keeps squares finite.
__device__ __forceinline__ float limited(float v) { return at_least(-100, at_most(100, v)); }

__device__ __forceinline__ float reciprocal(float v) { return __fdividef(1.0f, v); }

// v * sigmoid(w) with w = Inner(v); Inner gives -w log2 e, whose power of 2 is exp(-w).
template <class Inner>
struct Swish {
  static __device__ __forceinline__ float value(float v) {
    const float y = at_most(126, Inner::exponent(v, v * v));
    return v * reciprocal(1.0f + exp2f(y));
  }
  static __device__ __forceinline__ ValueAndSlope both(float v) {
    const float x = limited(v), x2 = x * x;
    const float e = exp2f(at_most(126, Inner::exponent(x, x2)));
    const float s = reciprocal(1.0f + e);
    const float rest = s * (s * e);  // s (1 - s), without cancellation
    return {v * s, fmaf(x * rest, Inner::slope(x2), s)};
  }
};

struct SiluInner {
  static __device__ __forceinline__ float exponent(float v, float) { return v * -kLog2e; }
  static __device__ __forceinline__ float slope(float) { return 1.0f; }
};
using Silu = Swish<SiluInner>;

// w = 2 u with u = sqrt(2/pi) (v + 0.044715 v^3), since (1 + tanh u) / 2 = sigmoid(2 u).
struct GeluTanhInner {
  static constexpr float kTwiceSlope = 1.5957691216f;  // 2 sqrt(2/pi)
  static constexpr float kExponent = -2.3022081987f;   // the same times -log2 e
  static constexpr float kCubic = 0.044715f;
  static __device__ __forceinline__ float exponent(float v, float v2) {
    return v * fmaf(v2, kExponent * kCubic, kExponent);
  }
  static __device__ __forceinline__ float slope(float v2) {
    return fmaf(v2, 3 * kTwiceSlope * kCubic, kTwiceSlope);
  }
};
using GeluTanh = Swish<GeluTanhInner>;

// v * Phi(v), the normal distribution function. With a = |v| and t = 1 / (1 + 0.35 a), Phi(-a) is
// exp(-a^2/2) times a polynomial in t, whose error times exp(-a^2/4) is below 2^-24.
struct GeluErf {
  static __device__ __forceinline__ ValueAndSlope both(float v) {
    const float a = at_most(100, fabsf(v));
    const float bell = exp2f(a * (-0.5f * kLog2e) * a);
    const float t = reciprocal(fmaf(a, 0.35f, 1.0f));
    float ratio = 0.0431523286f;
    ratio = fmaf(ratio, t, -0.280090481f);
    ratio = fmaf(ratio, t, 0.589944839f);
    ratio = fmaf(ratio, t, -0.263429731f);
    ratio = fmaf(ratio, t, 0.305096865f);
    ratio = fmaf(ratio, t, 0.101685353f);
    ratio = fmaf(ratio, t, 0.00364081189f);
    const float tail = bell * ratio;
    const float cumulative = v < 0 ? tail : 1.0f - tail;
    const float density = bell * 0.39894228040f;  // 1 / sqrt(2 pi)
    return {v * cumulative, fmaf(v < 0 ? -a : a, density, cumulative)};
  }
  static __device__ __forceinline__ float value(float v) { return both(v).value; }
};

struct Relu {
  // Not a maximum: a NaN stays one.
  static __device__ __forceinline__ float value(float v) { return v <= 0 ? 0.0f : v; }
  static __device__ __forceinline__ ValueAndSlope both(float v) {
    return {value(v), v <= 0 ? 0.0f : 1.0f};
  }
};

struct Tanh {
  static __device__ __forceinline__ float value(float v) { return tanhf(v); }
  // 4 e / (1 + e)^2 with e = exp(-2 |v|): 1 - tanh^2 without cancellation.
  static __device__ __forceinline__ ValueAndSlope both(float v) {
    const float e = exp2f(-2 * kLog2e * fabsf(v)), r = reciprocal(1.0f + e);
    return {tanhf(v), (4.0f * e) * (r * r)};
  }
};

// Calls use(function) with the function of a kind, which is the same for all threads.
template <class Use>
__device__ __forceinline__ void with_function(ActivationKind kind, const Use& use) {
  switch (kind) {
    case ActivationKind::kRelu:
      return use(Relu());
    case ActivationKind::kSilu:
      return use(Silu());
    case ActivationKind::kGeluTanh:
      return use(GeluTanh());
    case ActivationKind::kGeluErf:
      return use(GeluErf());
    case ActivationKind::kTanh:
      return use(Tanh());
  }
}

}  // namespace ds::kernels::cuda
