// Element-wise work on ranges of arrays that may lie elsewhere than in memory (array_store.h), as
// ops/elementwise.h has it of tensors: a part is mapped after the other. What needs no other tensor
// is computed on the GPU for the elements that lie in its memory.
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
// `count` elements of one from `from_begin` on, copied to another from `to_begin` on.
void copy_array(const OpContext& ctx, const StoredArray& from, int64_t from_begin,
                const StoredArray& to, int64_t to_begin, int64_t count);

// bf16 weights and the low halves beside them, each from where its part of masters begins.
struct SplitRange {
  const StoredArray& weights;
  int64_t weights_begin;
  const StoredArray& low;
  int64_t low_begin;
};
// Masters, fp32, split into both, and joined from them.
void split_to_arrays(const OpContext& ctx, const Tensor& masters, const SplitRange& to);
void join_from_arrays(const OpContext& ctx, const SplitRange& from, const Tensor& masters);
// Elements [begin, end).
void fill_array(const OpContext& ctx, float value, const StoredArray& array, int64_t begin,
                int64_t end);
void scale_array(const OpContext& ctx, const StoredArray& array, int64_t begin, int64_t end,
                 float factor);
// Cut at multiples of 32 elements they add up to what the whole gives (ops/reduce.h).
ExactSum exact_squares(const OpContext& ctx, const StoredArray& array, int64_t begin, int64_t end);

}  // namespace ds::ops
