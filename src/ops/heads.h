// Packed projections to heads and back, on the CPU. Models do not use it: their attention reads
// heads where the projection left them. It serves programs with attention of their own.
#pragma once

#include "ops/context.h"

namespace ds::ops {

// y [P, B, H, T, D] = x [B, T, P * H * D] + bias [P * H * D], heads before tokens. `bias` may be
// empty. One type: fp32, bf16 or fp16. The gradient of x is merge_heads of that of y, and that of
// bias its column sums.
void split_heads(const OpContext& ctx, const Tensor& x, const Tensor& bias, Tensor& y);

// x [B, T, P * H * D] of y [P, B, H, T, D]: the inverse without a bias.
void merge_heads(const OpContext& ctx, const Tensor& y, Tensor& x);

}  // namespace ds::ops
