// One fused pass of Adam or AdamW over a flat range (Kingma and Ba, arXiv:1412.6980; Loshchilov and
// Hutter, arXiv:1711.05101).
#pragma once

#include "ops/context.h"

namespace ds::ops {

struct AdamStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW; else L2 added to the gradient
  bool bias_correction = true;
  int64_t step = 1;      // t, from 1
  float grad_scale = 1;  // gradients are multiplied by this first (unscale and clip)
};

// With g = grad * grad_scale (+ weight_decay * p when coupled), m and v the moments,
// d = sqrt(v / c2) + eps: p -= lr * (m / c1 / d [+ weight_decay * p when decoupled]).
// master, grad, m, v are fp32 of equal length. `model` receives the new master rounded to bf16, or
// is empty when the model itself is the master.
void adam(const OpContext& ctx, const AdamStep& step, Tensor& master, const Tensor& grad, Tensor& m,
          Tensor& v, Tensor& model);

}  // namespace ds::ops
