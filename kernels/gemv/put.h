// Where a sum of gemv goes: with its bias, in the type of y.
#pragma once

#include "base/bfloat16.h"
#include "base/float16.h"
#include "kernels/float_type.h"

namespace ds::kernels {

template <class T>
void put_sum(FloatType out, void* y, int64_t at, const T* bias, int64_t j, float sum) {
  if (bias != nullptr) sum += to_float(bias[j]);
  switch (out) {
    case FloatType::kBFloat16:
      static_cast<bfloat16*>(y)[at] = to_bfloat16(sum);
      break;
    case FloatType::kFloat16:
      static_cast<float16*>(y)[at] = to_float16(sum);
      break;
    default:
      static_cast<float*>(y)[at] = sum;
  }
}

}  // namespace ds::kernels
