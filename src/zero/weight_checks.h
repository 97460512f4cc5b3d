// Looks, when asked to, for ranks whose weights went apart.
#pragma once

#include "zero/weights.h"

namespace ds::zero {

// Throws kState where whole weights differ between ranks, or are not the masters (every rank).
void check_weights(const OpContext& ctx, const StateArrays& arrays, const Weights& weights);

}  // namespace ds::zero
