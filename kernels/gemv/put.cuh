// What follows a sum of few rows in device code.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/float_type.h"

namespace ds::kernels::cuda {

// y[at] = sum + bias[j], in the type of y; bias may be null.
template <class T>
__device__ __forceinline__ void put(FloatType out, void* y, int64_t at, const void* bias, int64_t j,
                                    float sum) {
  if (bias != nullptr) sum += widen(static_cast<const T*>(bias)[j]);
  switch (out) {
    case FloatType::kBFloat16:
      static_cast<bfloat16*>(y)[at] = narrow<bfloat16>(sum);
      break;
    case FloatType::kFloat16:
      static_cast<float16*>(y)[at] = narrow<float16>(sum);
      break;
    default:
      static_cast<float*>(y)[at] = sum;
  }
}

// Rows of x that a block takes at a time, so that their sums stay in registers.
inline constexpr int kMostTokens = 4;

// Calls fn with how many a kernel should be made for, for m rows of x: 1, 2 or kMostTokens.
template <class Fn>
void with_tokens(int64_t m, const Fn& fn) {
  if (m == 1) {
    fn(std::integral_constant<int, 1>());
  } else if (m == 2) {
    fn(std::integral_constant<int, 2>());
  } else {
    fn(std::integral_constant<int, kMostTokens>());
  }
}

}  // namespace ds::kernels::cuda
