// Products with few rows: B is read once where it lies, nothing is packed. And what every way of
// multiplying ends with.
#pragma once

#include "kernels/matmul/matmul.h"

namespace ds::kernels::gemm {

void multiply_direct(const Matmul& problem, ThreadPool& pool);

// Scales, adds and stores sums of part of C, as `problem` says; they may be overwritten.
void finish_part(const Matmul& problem, float* sums, int64_t stride, int64_t row, int64_t rows,
                 int64_t column, int64_t columns);

}  // namespace ds::kernels::gemm
