// Conversions around a tile product: bf16 or fp16 blocks to fp32, and the fp32 result to C.
#pragma once

#include <cstdint>

#include "kernels/float_type.h"

namespace ds::kernels {

// to[i, j] = from[i, j]; strides in elements.
void widen_block(FloatType type, const void* from, int64_t from_stride, float* to,
                 int64_t to_stride, int64_t rows, int64_t columns);

// c[i, j] = from[i, j] + bias[j] (bias may be null) (+ c[i, j]), rounded to the type of c.
struct FinishBlock {
  const float* from = nullptr;
  int64_t from_stride = 0;
  FloatType bias_type = FloatType::kFloat32;
  const void* bias = nullptr;
  bool accumulate = false;
  FloatType c_type = FloatType::kFloat32;
  void* c = nullptr;
  int64_t c_stride = 0;
  int64_t rows = 0, columns = 0;
};
void finish_block(const FinishBlock& call);

// c[i, j] = bias[j] (+ c[i, j]).
void start_with_bias(const float* bias, bool accumulate, float* c, int64_t c_stride, int64_t rows,
                     int64_t columns);

}  // namespace ds::kernels
