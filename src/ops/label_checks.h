// Labels of rows of logits, before anything is written.
#pragma once

#include "ops/checks.h"
#include "ops/cross_entropy.h"

namespace ds::ops {

// int32 [rows], each a class below `valid` or to be ignored. A GPU's memory is not read here: its
// kernels keep to the rows.
inline void check_labels(const Op& op, const Tensor& labels, int64_t rows, int64_t valid) {
  check_dense(labels, op, "labels", DType::kInt32, {rows});
  if (op.ctx.device->kind() != DeviceKind::kCpu) return;
  const int32_t* const label = labels.data<int32_t>();
  for (int64_t row = 0; row < rows; ++row) {
    DS_CHECK(label[row] == kIgnoreLabel || (label[row] >= 0 && label[row] < valid),
             Code::kInvalidArgument, op, ": the label of row ", row, " is ", label[row],
             ", but must be in [0, ", valid, ") or ", kIgnoreLabel, " to ignore the row");
  }
}

}  // namespace ds::ops
