// Packed projections to heads and back: the permutation 0213 of [batch, tokens, heads, size], for
// one tensor or several side by side (queries, keys and values).
#pragma once

#include <cstdint>

#include "base/thread_pool_fwd.h"
#include "kernels/float_type.h"

namespace ds::kernels {

// Packed: [batch, tokens, parts, heads, size]. Split: [parts, batch, heads, tokens, size].
struct HeadShape {
  FloatType type = FloatType::kFloat32;
  int64_t batch = 0, tokens = 0, parts = 1, heads = 0, size = 0;

  int64_t columns() const { return parts * heads * size; }  // of a packed row
};

// split = packed + bias, in the other order; bias [parts, heads, size] or null. No overlap.
void split_heads(const HeadShape& shape, const void* packed, const void* bias, void* split,
                 ThreadPool& pool);
// The inverse without a bias. No overlap.
void merge_heads(const HeadShape& shape, const void* split, void* packed, ThreadPool& pool);

namespace reference {
// Where element `i` of a packed tensor stands in the split one.
int64_t split_place(const HeadShape& shape, int64_t i);
}  // namespace reference

}  // namespace ds::kernels
