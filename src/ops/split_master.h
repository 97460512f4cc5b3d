// fp32 masters kept as bf16 weights and the halves that these lack (kernels/optimizer).
#pragma once

#include "ops/context.h"

namespace ds::ops {

// masters fp32, weights bf16, low uint16, all of equal size. join(split(x)) is x, bit for bit.
void split_masters(const OpContext& ctx, const Tensor& masters, Tensor& weights, Tensor& low);
void join_masters(const OpContext& ctx, const Tensor& weights, const Tensor& low, Tensor& masters);

}  // namespace ds::ops
