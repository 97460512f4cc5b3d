// What the losses of this folder share: their sums, and gradients that are made with them.
#pragma once

#include <memory>

#include "nn/tape.h"

namespace ds::nn {

// float64 [1] on the device; on the CPU one after the other. Ignored ones are 0.
Tensor sum_of(const OpContext& ctx, const Tensor& losses);

// What became of the logits in forward is their gradient, for an upstream of tape.loss_gradient().
void record_gradient(Tape& tape, const Value& logits, const Tensor& gradient,
                     const std::shared_ptr<GradientSlot>& slot);

}  // namespace ds::nn
