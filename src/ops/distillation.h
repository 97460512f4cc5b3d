// The loss of a student that learns from labels and from a teacher, without a second copy of the
// student's logits.
#pragma once

#include "kernels/loss/distillation.h"
#include "ops/context.h"

namespace ds::ops {

using kernels::DistillationWeights;

// logits [N, V] and the teacher's [N, V'], each fp32, bf16 or fp16, of which `valid` columns count;
// labels int32 [N] in [0, valid) or kIgnoreLabel. cross_entropy and divergence [N] fp32 are the
// two losses of each row (kernels/loss/distillation.h), and logits are replaced by scale x the
// gradient of their weighted sum, 0 in ignored rows and in columns that do not count. Rows do not
// depend on each other: slices of them give the same bits. A label out of range throws
// kInvalidArgument naming the row; on a GPU it makes the row's results NaN.
struct DistillationInputs {
  const Tensor& teacher;
  const Tensor& labels;
  int64_t valid;
  DistillationWeights weights;
  float scale;
};
struct DistillationLosses {
  Tensor& cross_entropy;
  Tensor& divergence;
};
void distillation(const OpContext& ctx, Tensor& logits, const DistillationInputs& in,
                  const DistillationLosses& out);

}  // namespace ds::ops
