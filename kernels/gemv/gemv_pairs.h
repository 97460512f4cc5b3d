// gemv of bf16 with AVX512-BF16's dot products of pairs: half of the instructions of fp32 products,
// and half of the bytes of x.
#pragma once

#include "kernels/gemv/gemv.h"

namespace ds::kernels {

// Elements between prepared rows of x: whole vectors.
constexpr int64_t gemv_pairs_padded(int64_t k) { return (k + 31) / 32 * 32; }

// Copies of the rows of x, zero behind their ends.
void gemv_pairs_prepare(const Gemv& call, uint16_t* rows);
// Rows [begin, end) of w.
void gemv_pairs_run(const Gemv& call, const uint16_t* rows, int64_t begin, int64_t end);

}  // namespace ds::kernels
