// Element-wise operators; tensors are contiguous and of equal shape, fp32, bf16 or fp16.
#pragma once

#include <span>

#include "ops/context.h"

namespace ds::ops {

void add(const OpContext& ctx, const Tensor& a, const Tensor& b, Tensor& y);  // y may be a or b
void scale(const OpContext& ctx, const Tensor& x, float factor, Tensor& y);   // y may be x
void fill(const OpContext& ctx, float value, Tensor& y);
// Converts between fp32, bf16 and fp16 (round to nearest even), or copies equal types. Sources may
// be strided; the target is contiguous.
void cast(const OpContext& ctx, const Tensor& x, Tensor& y);
// sum += scale * x, each of any of the types; computed in fp32, rounded to the type of sum, which
// may be x.
void accumulate(const OpContext& ctx, const Tensor& x, float scale, Tensor& sum);
inline void accumulate(const OpContext& ctx, const Tensor& x, Tensor& sum) {
  accumulate(ctx, x, 1.0f, sum);
}

// For every i: flat[offsets[i] ...] += scale * *xs[i], over its elements. Many small tensors in one
// parallel pass; the pieces of `flat` that they name must not overlap.
void accumulate_into(const OpContext& ctx, std::span<const Tensor* const> xs,
                     std::span<const int64_t> offsets, float scale, Tensor& flat);

}  // namespace ds::ops
