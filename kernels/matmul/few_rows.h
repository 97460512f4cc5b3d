// Products with few rows where B lies along k, as weights do: blocks of dot products, for which
// nothing of B is packed.
//
// A packed panel of B costs as much as some dozens of rows of the product, which few rows do not
// earn back. Dot products read both operands along k; of B six columns at a time stay in the
// first-level cache while all rows of A, which the second level holds, pass by. k is cut into
// blocks that fit there, by its length alone: sums have the same bits for any number of threads and
// rows.
#pragma once

#include "kernels/matmul/matmul.h"

namespace ds::kernels::gemm {

void multiply_few_rows(const Matmul& problem, ThreadPool& pool);

}  // namespace ds::kernels::gemm
