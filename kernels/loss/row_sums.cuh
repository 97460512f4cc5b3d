// What sums of exponentials over a row of logits have in common on a GPU.
#pragma once

#include "kernels/cuda/device.cuh"

namespace ds::kernels::cuda {

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7F800000u); }
__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7FC00000u); }

// exp(x - shift)
__device__ __forceinline__ float exponential(float x, float shift) {
  constexpr float kLog2e = 1.44269504089f;
  return exp2f((x - shift) * kLog2e);
}

// Where all were -inf so far, any finite number serves.
__device__ __forceinline__ float finite_shift(float shift) {
  return shift == -infinity() ? 0.0f : shift;
}

}  // namespace ds::kernels::cuda
