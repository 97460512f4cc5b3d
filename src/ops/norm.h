// Layer normalisation over the last dimension, fused with the residual addition before it.
// Statistics are fp32; gamma and beta have the type of x.
#pragma once

#include "ops/context.h"

namespace ds::ops {

// s = x + residual (residual may be empty, then s = x and `sum` may be empty too);
// y = (s - mean) * rstd * gamma + beta. mean and rstd are fp32 [rows]. `sum` receives s rounded to
// its type, and the statistics are those of the rounded s, so that backward sees the same values.
void layer_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& gamma,
                const Tensor& beta, float eps, Tensor& y, Tensor& sum, Tensor& mean, Tensor& rstd);

// dx = gradient through the normalisation + dsum (gradient that reaches s directly; may be empty).
// It is the gradient of both x and residual. dgamma and dbeta (fp32) accumulate.
void layer_norm_backward(const OpContext& ctx, const Tensor& dy, const Tensor& dsum,
                         const Tensor& sum, const Tensor& gamma, const Tensor& mean,
                         const Tensor& rstd, Tensor& dx, Tensor& dgamma, Tensor& dbeta);

// s = x + residual rounded to its type (residual may be empty); y = s / sqrt(mean(s^2) + eps) *
// gamma (Zhang and Sennrich, arXiv:1910.07467). Shapes and `sum` as in layer_norm; rstd fp32
// [rows].
void rms_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& gamma,
              float eps, Tensor& y, Tensor& sum, Tensor& rstd);

// As layer_norm_backward, without mean and beta.
void rms_norm_backward(const OpContext& ctx, const Tensor& dy, const Tensor& dsum,
                       const Tensor& sum, const Tensor& gamma, const Tensor& rstd, Tensor& dx,
                       Tensor& dgamma);

}  // namespace ds::ops
