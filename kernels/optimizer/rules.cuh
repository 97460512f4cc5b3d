// The rules of the optimizers in device code: the arithmetic of one element that rules-inl.h asks
// for.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/optimizer/update.h"

namespace ds::kernels::rules {

struct Element : UpdateConstants {
  using Number = float;
  __device__ __forceinline__ explicit Element(const UpdateConstants& c) : UpdateConstants(c) {}

  static __device__ __forceinline__ float zero() { return 0; }
  static __device__ __forceinline__ float add(float a, float b) { return a + b; }
  static __device__ __forceinline__ float sub(float a, float b) { return a - b; }
  static __device__ __forceinline__ float mul(float a, float b) { return a * b; }
  static __device__ __forceinline__ float fma(float a, float b, float c) { return fmaf(a, b, c); }
  static __device__ __forceinline__ float minus_product(float a, float b, float c) {
    return fmaf(-b, c, a);
  }
  static __device__ __forceinline__ float max(float a, float b) { return fmaxf(a, b); }
  static __device__ __forceinline__ float sqrt(float a) { return __fsqrt_rn(a); }
  // Which keeps NaN.
  static __device__ __forceinline__ float zero_if_negative(float a) { return a < 0 ? 0.0f : a; }
  // a, with the sign of b; zero where b is.
  static __device__ __forceinline__ float with_sign_of(float a, float b) {
    return b == 0 ? 0.0f : copysignf(a, b);
  }
  // a / b for b from 2^-126 to infinity.
  static __device__ __forceinline__ float over(float a, float b) {
    return a * __frcp_rn(b > 0x1p126f ? 0x1p126f : b);
  }
};

#define DS_RULE __device__ __forceinline__
#include "kernels/optimizer/rules-inl.h"
#undef DS_RULE

}  // namespace ds::kernels::rules
