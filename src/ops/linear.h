// Matrix products of linear layers. Activations and weights are fp32, bf16 or fp16 (one type per
// call); weight and bias gradients always accumulate into fp32 buffers.
#pragma once

#include "ops/activation.h"
#include "ops/context.h"

namespace ds::ops {

// y[..., N] = x[..., K] * w[N, K]^T + bias[N]. `bias` may be empty. y may be fp32 whatever x and w
// are. Here and where products read dy, that may be some columns of a matrix: its rows lie one
// distance apart, and all else is contiguous.
void linear(const OpContext& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y);

// pre = x w^T + bias as `linear` gives it, and y = f(pre), in one pass over the sums. `pre` has the
// shape and type of y, or is empty when nobody needs it. On a GPU y may be f of the fp32 sums, of
// which pre is the rounding.
void linear_activation(const OpContext& ctx, const Tensor& x, const Tensor& w, const Tensor& bias,
                       Activation kind, Tensor& pre, Tensor& y);

// dx[..., K] = dy[..., N] * w[N, K]; adds to dx when `accumulate`.
void linear_grad_input(const OpContext& ctx, const Tensor& dy, const Tensor& w, Tensor& dx,
                       bool accumulate = false);

// The gradient of the argument of a GELU whose result a linear layer read: dpre[..., K] =
// (dy[..., N] w[N, K]) gelu'(pre). On a GPU in one pass where cuBLASLt does that (the tanh form).
// `db` (fp32 [K], may be empty) += the column sums of dpre, unless false is returned: then they are
// left to linear_grad_weight_bias, which has them beside its product.
bool linear_grad_input_gelu(const OpContext& ctx, const Tensor& dy, const Tensor& w,
                            const Tensor& pre, Gelu kind, Tensor& dpre, Tensor& db);

// dw[N, K] (fp32) = dy[..., N]^T * x[..., K], added to what is there when `accumulate`.
void linear_grad_weight(const OpContext& ctx, const Tensor& dy, const Tensor& x, Tensor& dw,
                        bool accumulate = true);

// db[N] (fp32) += sum of dy over its rows.
void linear_grad_bias(const OpContext& ctx, const Tensor& dy, Tensor& db);

// linear_grad_weight and linear_grad_bias, on a GPU in one pass over dy where cuBLASLt does that.
void linear_grad_weight_bias(const OpContext& ctx, const Tensor& dy, const Tensor& x, Tensor& dw,
                             Tensor& db, bool accumulate = true);

}  // namespace ds::ops
