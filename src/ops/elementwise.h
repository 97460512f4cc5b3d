// Element-wise operators; tensors are contiguous and of equal shape, fp32 or bf16.
#pragma once

#include "ops/context.h"

namespace ds::ops {

void add(const OpContext& ctx, const Tensor& a, const Tensor& b, Tensor& y);  // y may be a or b
void scale(const OpContext& ctx, const Tensor& x, float factor, Tensor& y);   // y may be x
void fill(const OpContext& ctx, float value, Tensor& y);
// Converts between fp32 and bf16 (round to nearest even), or copies equal types. Sources may be
// strided; the target is contiguous.
void cast(const OpContext& ctx, const Tensor& x, Tensor& y);
// y (fp32) += x (fp32 or bf16).
void accumulate(const OpContext& ctx, const Tensor& x, Tensor& y);

}  // namespace ds::ops
