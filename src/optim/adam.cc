#include "optim/adam.h"

#include <algorithm>

namespace ds::optim {

Adam::Adam(const AdamOptions& options, const std::shared_ptr<Device>& device, int64_t begin,
           int64_t end)
    : options_(options),
      begin_(begin),
      end_(end),
      exp_avg_(Tensor::zeros(device, DType::kFloat32, {end - begin}, MemoryTag::kOptimizer)),
      exp_avg_sq_(Tensor::zeros(device, DType::kFloat32, {end - begin}, MemoryTag::kOptimizer)) {}

void Adam::step(const OpContext& ctx, const UpdateStep& step, std::span<const UpdateRange> ranges,
                Tensor& masters, const Tensor& gradients, Tensor& model) {
  ops::AdamStep update;
  update.lr = step.lr;
  update.beta1 = step.beta1;
  update.beta2 = step.beta2;
  update.eps = options_.eps;
  update.decoupled = options_.decoupled;
  update.bias_correction = options_.bias_correction;
  update.step = steps_ + 1;
  update.grad_scale = step.grad_scale;
  for (const UpdateRange& range : ranges) {
    const int64_t begin = std::max(range.begin, begin_), end = std::min(range.end, end_);
    if (begin >= end) continue;
    update.weight_decay = range.decays ? options_.weight_decay : 0;
    Tensor p = masters.slice(0, begin, end);
    Tensor m = exp_avg_.slice(0, begin - begin_, end - begin_);
    Tensor v = exp_avg_sq_.slice(0, begin - begin_, end - begin_);
    Tensor copy = model ? model.slice(0, begin, end) : Tensor();
    ops::adam(ctx, update, p, gradients.slice(0, begin, end), m, v, copy);
  }
  ++steps_;
}

}  // namespace ds::optim
