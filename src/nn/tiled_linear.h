// Products with weights of which only a tile at a time is resident (memory-centric tiling:
// Rajbhandari et al., arXiv:2104.07857, section 5.1.3): no layer needs memory for its whole weight
// or its whole gradient.
#pragma once

#include "nn/tape.h"

namespace ds::nn {

// y = x w^T + b with the bits of ops::linear.
void tiled_linear(Tape& tape, const Tensor& x, ParamId weight, const Tensor& bias, Tensor& y);

// dx = dy w, where there is a dx, and the weight's gradient. dx sums tile after tile, in fp32.
void tiled_linear_backward(Tape& tape, const Tensor& x, const Tensor& dy, ParamId weight,
                           Tensor& dx);

}  // namespace ds::nn
