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

enum class Activation { kRelu, kSilu, kGeluTanh, kGeluErf, kTanh };

// y = f(x), any shape. y may be x.
void activation(const OpContext& ctx, const Tensor& x, Activation kind, Tensor& y);
// dx = dy * f'(x). dx may be dy.
void activation_backward(const OpContext& ctx, const Tensor& dy, const Tensor& x, Activation kind,
                         Tensor& dx);

// y = f(gate) * up: SwiGLU, GEGLU and their kin (Shazeer, arXiv:2002.05202). Tensors [..., N]; gate
// and up may be views of a wider packed tensor: their rows, of one common stride each, are dense.
// y is contiguous.
void gated_activation(const OpContext& ctx, const Tensor& gate, const Tensor& up, Activation kind,
                      Tensor& y);
// dgate = dy * up * f'(gate), dup = dy * f(gate); views as above. dgate may be gate, dup may be up.
void gated_activation_backward(const OpContext& ctx, const Tensor& dy, const Tensor& gate,
                               const Tensor& up, Activation kind, Tensor& dgate, Tensor& dup);

}  // namespace ds::ops
