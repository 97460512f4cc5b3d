// Attention on a GPU whose values have another size than its keys: kernels there have one size of
// heads, so what is smaller gets channels of zeros behind its own, in scratch.
#pragma once

#include "ops/attention.h"

namespace ds::ops {

inline bool heads_differ(const AttentionInputs& in) { return in.q.size(3) != in.v.size(3); }

// Those of ops/attention.h, of arguments that these have checked.
void attention_of_equal_heads(const OpContext& ctx, const AttentionInputs& in,
                              const AttentionOptions& options, const AttentionOutputs& out);
void attention_of_equal_heads_backward(const OpContext& ctx, const AttentionInputs& in,
                                       const AttentionOptions& options, const AttentionOutputs& out,
                                       const Tensor& dout, const AttentionGradients& gradients);

}  // namespace ds::ops
