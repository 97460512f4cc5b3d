// Fused softmax cross entropy over a vocabulary, without a second copy of the logits.
#pragma once

#include "ops/context.h"

namespace ds::ops {

inline constexpr int32_t kIgnoreLabel = -100;

// logits [N, V] fp32, bf16 or fp16; columns >= `valid` are padding and count as -inf. labels int32
// [N] in [0, valid) or kIgnoreLabel. loss [N] and lse [N] fp32: loss = lse - logit[label], 0 where
// ignored. A label out of range throws kInvalidArgument naming the row.
void cross_entropy(const OpContext& ctx, const Tensor& logits, const Tensor& labels, int64_t valid,
                   Tensor& loss, Tensor& lse);

// dlogits = scale * (softmax - onehot), 0 in ignored rows and padding columns. May be logits.
void cross_entropy_backward(const OpContext& ctx, const Tensor& logits, const Tensor& labels,
                            int64_t valid, const Tensor& lse, float scale, Tensor& dlogits);

// Both at once, for training: loss [N] as above (within the same bounds), and logits are replaced
// by scale * (softmax - onehot), 0 in ignored rows and padding columns. `scale` is all that the
// mean and the loss scale ask for, e.g. loss scale / labels counted. Rows do not depend on each
// other: calling it on slices of rows, each right after the product that made them and while they
// are in the cache, gives the same bits as one call.
void cross_entropy_fused(const OpContext& ctx, Tensor& logits, const Tensor& labels, int64_t valid,
                         float scale, Tensor& loss);
// The same on a GPU with a scale, fp32 [1], that is read there when the work runs.
void cross_entropy_fused(const OpContext& ctx, Tensor& logits, const Tensor& labels, int64_t valid,
                         const Tensor& scale, Tensor& loss);

}  // namespace ds::ops
