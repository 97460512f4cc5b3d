// Softmax of attention scores, on the CPU. Models do not use it: their attention (ops/attention.h)
// keeps no scores. It serves programs that have scores of their own.
#pragma once

#include "ops/context.h"

namespace ds::ops {

struct SoftmaxOptions {
  float scale = 1;
  bool causal = false;
};
// y = softmax(scale * x) over the last of 1 to 4 dimensions, the one before it being queries; x is
// fp32, bf16 or fp16, y may be x. `mask` (uint8, may be empty) has as many dimensions, each as long
// or 1 but the last, and 0 where a key is hidden. With `causal` query i sees keys up to
// i + keys - queries. A row that sees nothing becomes 0.
void softmax(const OpContext& ctx, const Tensor& x, const Tensor& mask,
             const SoftmaxOptions& options, Tensor& y);

// dx = scale * y * (dy - sum of y dy), by rows; dx may be y or dy.
void softmax_backward(const OpContext& ctx, const Tensor& y, const Tensor& dy, float scale,
                      Tensor& dx);

}  // namespace ds::ops
