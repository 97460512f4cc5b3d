// Gates of optimizer updates (kernels/optimizer/update_gate.h).
#pragma once

#include "kernels/optimizer/update_gate.h"
#include "ops/context.h"

namespace ds::ops {

// `squares` are ExactSum's words as ops::exact_squares leaves them; the gate, the bytes of one
// kernels::UpdateGate, lies where they do. Nobody waits for it.
Tensor update_gate(const OpContext& ctx, const Tensor& squares, const kernels::GateRule& rule);

}  // namespace ds::ops
