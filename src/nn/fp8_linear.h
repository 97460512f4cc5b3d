// Linear layers of 8-bit codes; nn::linear and its kin choose them.
#pragma once

#include "nn/fp8.h"
#include "nn/layers.h"

namespace ds::nn {

// y = x w^T + b for a weight that `fp8` has. Between forward and backward only codes of x are kept.
Value fp8_linear(Tape& tape, Fp8Linears& fp8, const Value& x, const Projection& p);

// A layer, a function and a second layer, in two halves: each is an operator of its own. What is
// between them is not stored: the second layer's cast applies the function, and the cast of the
// gradient of the first layer's output its derivative.
struct Fp8Hidden {
  Value pre;                                 // x w^T + b
  std::shared_ptr<ops::Fp8Source> gradient;  // of pre, where the second layer leaves it
};
Fp8Hidden fp8_hidden(Tape& tape, Fp8Linears& fp8, const Value& x, const Projection& up);
// f(pre) w^T + b.
Value fp8_activated(Tape& tape, Fp8Linears& fp8, const Fp8Hidden& hidden, ops::Activation f,
                    const Projection& down);

// (f(gate) * up) w^T + b. The memory of gate and up is overwritten by their gradients in backward.
Value fp8_gated(Tape& tape, Fp8Linears& fp8, const Value& gate, const Value& up, ops::Activation f,
                const Projection& down);

}  // namespace ds::nn
