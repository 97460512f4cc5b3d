// What the parts of a step of ZenFlow share.
#pragma once

#include <vector>

#include "ops/elementwise.h"
#include "optim/zenflow.h"

namespace ds::optim {

inline constexpr kernels::UpdateRule kZenFlowRule = kernels::UpdateRule::kAdam;

// Room for the elements of one run, made before a step writes anything.
struct ZenFlow::Scratch {
  Tensor grad, mean;            // fp32
  Tensor masters, weight, low;  // `weight` in the type of the model's copy
  Tensor chosen_grad, chosen_master, chosen_weight, chosen_low;
};

struct ZenFlow::StepWork {
  const OpContext& ctx;
  const UpdateStep& step;
  FlatTensors& tensors;
  std::vector<kernels::UpdateConstants> chosen;  // of an update of chosen elements
  std::vector<kernels::UpdateConstants> others;  // and of others, by the mean of their gradients
  Scratch scratch;

  Tensor empty(DType type, int64_t elements) const {
    return Tensor::empty(ctx.device, type, {elements}, MemoryTag::kWorkspace);
  }
  bool split() const { return static_cast<bool>(tensors.low_halves); }
  // fp32 numbers of a run's gradients.
  Tensor fp32(const Tensor& grad) const {
    if (grad.dtype() == DType::kFloat32) return grad;
    Tensor out = scratch.grad.slice(0, 0, grad.elements());
    ops::cast(ctx, grad, out);
    return out;
  }
};

}  // namespace ds::optim
