// Messages between ranks in 8 or 4 bits: numbers as codes with a scale per block
// (kernels/quantize/block_quantize.h), packed into bytes.
#pragma once

#include "kernels/quantize/block_quantize.h"
#include "ops/context.h"

namespace ds::ops {

using kernels::BlockBegins;

// Bytes of a message of so many elements in so many blocks: first the codes, then the scales.
int64_t packed_bytes(int bits, int64_t elements, int64_t blocks);

// x fp32, bf16 or fp16, dense; `packed` uint8, at least packed_bytes. `errors`, if any, is what
// pack_blocks with 8 bits makes of as many elements: see kernels::RoundingError; x is fp32.
void pack_blocks(const OpContext& ctx, const Tensor& x, int bits, BlockBegins begins,
                 Tensor& packed, Tensor* errors = nullptr, float beta = 0);

// y = factor * the numbers, or that added to y.
void unpack_blocks(const OpContext& ctx, const Tensor& packed, int bits, BlockBegins begins,
                   float factor, bool add, Tensor& y);

// Multiplies all numbers of a message.
void scale_packed(const OpContext& ctx, const Tensor& packed, int bits, BlockBegins begins,
                  float factor);

}  // namespace ds::ops
