// Numbers as codes of 8 or 4 bits by groups (kernels/quantize/group_quantize.h), on the CPU.
#pragma once

#include <optional>

#include "kernels/quantize/group_quantize.h"
#include "ops/context.h"

namespace ds::ops {

using kernels::GroupFormat;

// x and y dense, fp32, bf16 or fp16. codes uint8 [format.code_bytes(elements)]; scales fp32
// [groups], or [2, groups] with the minima in the second row.
void quantize_groups(const OpContext& ctx, const Tensor& x, const GroupFormat& format,
                     const std::optional<RandomStream>& random, Tensor& codes, Tensor& scales);
void dequantize_groups(const OpContext& ctx, const Tensor& codes, const Tensor& scales,
                       const GroupFormat& format, Tensor& y);
// y = x after both; y may be x.
void fake_quantize_groups(const OpContext& ctx, const Tensor& x, const GroupFormat& format,
                          const std::optional<RandomStream>& random, Tensor& y);

// The shape of the scales.
Shape group_scales_shape(const GroupFormat& format, int64_t elements);

}  // namespace ds::ops
