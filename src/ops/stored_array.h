// Element-wise work on ranges of arrays that may lie elsewhere than in memory (array_store.h), as
// ops/elementwise.h has it of tensors: a part is mapped after the other.
#pragma once

#include "base/exact_sum.h"
#include "ops/context.h"
#include "tensor/array_store.h"

namespace ds::ops {

// The range of as many elements as the packed tensor has, from `begin` on: copied to the tensor,
// from it, and with the tensor added; each in its own type.
void read_array(const OpContext& ctx, const StoredArray& from, int64_t begin, Tensor& to);
void write_array(const OpContext& ctx, const Tensor& from, const StoredArray& to, int64_t begin);
void accumulate_array(const OpContext& ctx, const Tensor& x, const StoredArray& sum, int64_t begin);
// Masters, fp32, split into bf16 weights and the range of low halves, and joined from them.
void split_to_array(const OpContext& ctx, const Tensor& masters, const Tensor& weights,
                    const StoredArray& low, int64_t begin);
void join_from_array(const OpContext& ctx, const Tensor& weights, const StoredArray& low,
                     int64_t begin, const Tensor& masters);
// Elements [begin, end).
void fill_array(const OpContext& ctx, float value, const StoredArray& array, int64_t begin,
                int64_t end);
void scale_array(const OpContext& ctx, const StoredArray& array, int64_t begin, int64_t end,
                 float factor);
// Cut at multiples of 32 elements they add up to what the whole gives (ops/reduce.h).
ExactSum exact_squares(const OpContext& ctx, const StoredArray& array, int64_t begin, int64_t end);

}  // namespace ds::ops
