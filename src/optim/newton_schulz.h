// Approximate orthogonalisation of matrices by the Newton-Schulz iteration of Muon: the singular
// values of a matrix are driven towards 1 by an odd polynomial of degree five, five times.
#pragma once

#include "config/config.h"
#include "ops/context.h"

namespace ds::optim {

// Replaces a contiguous fp32 matrix [rows, columns]. kStandard iterates on the matrix itself; kGram
// on its Gram matrix, which is smaller, and multiplies the matrix twice only. They agree but for
// rounding. All arithmetic is fp32: DeepSpeed runs the one in bf16 and the other in fp16 where the
// hardware has it, which is not imitated.
void orthogonalise(const OpContext& ctx, Tensor& matrix, MuonMethod method);

}  // namespace ds::optim
