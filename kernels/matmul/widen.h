// Conversions around a tile product: bf16 blocks to fp32, and the fp32 result to C.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"

namespace ds::kernels {

// to[i, j] = from[i, j]; strides in elements.
void widen_block(const bfloat16* from, int64_t from_stride, float* to, int64_t to_stride,
                 int64_t rows, int64_t columns);

// c[i, j] = from[i, j] + bias[j] (bias may be null) (+ c[i, j]), rounded to the type of c.
void finish_block(const float* from, int64_t from_stride, const bfloat16* bias, bool accumulate,
                  float* c, int64_t c_stride, int64_t rows, int64_t columns);
void finish_block(const float* from, int64_t from_stride, const bfloat16* bias, bool accumulate,
                  bfloat16* c, int64_t c_stride, int64_t rows, int64_t columns);

// c[i, j] = bias[j] (+ c[i, j]).
void start_with_bias(const float* bias, bool accumulate, float* c, int64_t c_stride, int64_t rows,
                     int64_t columns);

}  // namespace ds::kernels
