// Conversions around a product of blocks: 16-bit operands to fp32, and fp32 sums to C.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/activation/activation.h"
#include "kernels/float_type.h"

namespace ds::kernels::gemm {

// to[i, j] = from[i, j]; strides in elements.
void widen_block(FloatType type, const void* from, int64_t from_stride, float* to,
                 int64_t to_stride, int64_t rows, int64_t columns);

// v = alpha * sums[i, j] + bias[j] (may be null) (+ c[i, j]), rounded to the type of c, which is
// fp32 or that of the bias. Without an activation c = v; else pre = v (unless null) and c = f(v).
struct FinishBlock {
  float* sums = nullptr;  // overwritten when there is an activation
  int64_t sums_stride = 0;
  float alpha = 1;
  FloatType bias_type = FloatType::kFloat32;
  const void* bias = nullptr;
  bool accumulate = false;
  std::optional<ActivationKind> activation;
  FloatType c_type = FloatType::kFloat32;
  void* c = nullptr;
  int64_t c_stride = 0;
  void* pre = nullptr;
  int64_t pre_stride = 0;
  int64_t rows = 0, columns = 0;
};
void finish_block(const FinishBlock& call);

}  // namespace ds::kernels::gemm
