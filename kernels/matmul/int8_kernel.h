// The kernels behind int8_matmul.h, as kernel.h describes kernels; their sums are int32.
#pragma once

#include "kernels/matmul/kernel.h"

namespace ds::kernels::gemm {

const Kernel& amx_int8_kernel();
const Kernel& avx512_int8_kernel();
const Kernel& avx2_int8_kernel();
const Kernel& portable_int8_kernel();

// Sums to numbers, in place: sums[i, j] becomes float(sums[i, j]) * row_scales[i] *
// column_scales[j].
void scale_sums(float* sums, int64_t stride, int64_t rows, int64_t columns, const float* row_scales,
                const float* column_scales);

}  // namespace ds::kernels::gemm
