// quantized_gemv of 4-bit weights with AVX2, where turning codes into fp32 takes longer than
// reading them: products of bytes. Rows of x become fixed-point numbers of 23 bits, in pieces of up
// to 64 elements that share a power of two, each the sum of three signed bytes, so that a piece's
// products with codes are summed exactly in integers. An element of x is off by 2^-22 of its
// piece's largest at most; numbers in bf16 down to 2^-14 of that are exact.
#pragma once

#include <cstdint>

#include "kernels/quantize/quantize.h"

namespace ds::kernels {

inline constexpr int kMostByteTokens = 4;

// Floats that a prepared row of x takes.
int64_t byte_planes_stride(const QuantizedShape& w);
void byte_planes_prepare(const QuantizedGemv& call, float* rows);
// Sums of rows [token, + tokens) of x, at most kMostByteTokens, with a panel of w: [tokens][16].
void byte_planes_sums(const QuantizedGemv& call, const float* rows, int64_t panel, int64_t token,
                      int tokens, float* sums);

}  // namespace ds::kernels
