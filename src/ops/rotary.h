// Rotary position embedding (Su et al., arXiv:2104.09864) from tables of cosines and sines, so that
// every way of scaling frequencies is the caller's.
#pragma once

#include "ops/context.h"

namespace ds::ops {

struct RotaryOptions {
  bool interleaved = false;  // pairs are neighbours (2i, 2i + 1), else halves (i, i + R / 2)
  bool inverse = false;      // the transposed map: what backward needs
};

// x and y [B, T, H, D], any strides with a dense last dimension; y may be x. cos and sin: fp32
// [P, R / 2] with R <= D even; the first R channels of every head turn by the row that
// position_ids (int32 [B, T], in [0, P)) names, the rest are copied.
void rotary(const OpContext& ctx, const Tensor& x, const Tensor& position_ids, const Tensor& cos,
            const Tensor& sin, const RotaryOptions& options, Tensor& y);

}  // namespace ds::ops
