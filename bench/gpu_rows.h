// Operators at the sizes of training on a GPU: arrays several times its second-level cache, the
// widths of GPT-2 and Llama. bench/peers/gpu_operators.py reads types and sizes from the names.
#pragma once

#include <vector>

#include "kernels/op_case.h"

namespace ds::bench {

enum class RowSizes { kFull, kTiny };  // tiny: to see that every row runs

// Rows that have no reference to check, only a body to time. `flops` counts products alone; rows
// without them are bound by their least traffic, `bytes`.
std::vector<testing::OpCase> gpu_rows(RowSizes sizes);

// Filled with numbers whose bits vary, wherever the device has its memory.
Tensor varied_tensor(const OpContext& ctx, DType dtype, const Shape& shape);

}  // namespace ds::bench
