// Fused bias + GELU, tanh form (Hendrycks and Gimpel, arXiv:1606.08415, section 2) or erf form.
#pragma once

#include "ops/context.h"

namespace ds::ops {

enum class Gelu { kTanh, kErf };

// y = gelu(x + bias). `bias` [N] has the type of x, or is empty. y may be x.
void bias_gelu(const OpContext& ctx, const Tensor& x, const Tensor& bias, Gelu kind, Tensor& y);

// dx = dy * gelu'(x + bias); db (fp32, may be empty) += column sums of dx. dx may be dy.
void bias_gelu_backward(const OpContext& ctx, const Tensor& dy, const Tensor& x, const Tensor& bias,
                        Gelu kind, Tensor& dx, Tensor& db);

}  // namespace ds::ops
