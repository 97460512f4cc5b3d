// A linear layer of 8-bit codes; nn::linear chooses it.
#pragma once

#include "nn/fp8.h"
#include "nn/tape.h"

namespace ds::nn {

// y = x w^T + b for a weight that `fp8` has. Between forward and backward only codes of x are kept.
Value fp8_linear(Tape& tape, Fp8Linears& fp8, const Value& x, ParamId weight, ParamId bias);

}  // namespace ds::nn
