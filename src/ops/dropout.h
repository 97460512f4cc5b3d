// Dropout with counted randomness: the mask is recomputed, never stored.
#pragma once

#include "base/philox.h"
#include "ops/context.h"

namespace ds::ops {

// y = residual + x * keep / (1 - p). The first dimension of x counts samples, and keep of one comes
// from its elements of `stream`. `residual` may be empty; y may be x. p in [0, 1); p = 0 is the
// plain addition or copy.
void dropout(const OpContext& ctx, const Tensor& x, const Tensor& residual, double p,
             const RandomStream& stream, Tensor& y);

// dx = dy * keep / (1 - p) with the same mask. dx may be dy.
void dropout_backward(const OpContext& ctx, const Tensor& dy, double p, const RandomStream& stream,
                      Tensor& dx);

}  // namespace ds::ops
