// Layer and RMS normalisation over the last dimension, fused with the residual addition before it.
// Statistics are fp32; gamma and beta have the type of x.
#pragma once

#include "ops/context.h"

namespace ds::ops {

// What is empty if not given may be left out; what only layer normalisation has is left out of RMS
// normalisation.
struct NormInputs {
  Tensor x;
  Tensor residual = {};
  Tensor gamma;
  Tensor beta = {};  // of layer normalisation
  float eps = 0;
};
struct NormOutputs {
  Tensor y;
  Tensor sum = {};   // receives x + residual, rounded; not needed without a residual
  Tensor mean = {};  // fp32 [rows], of layer normalisation
  Tensor rstd;       // fp32 [rows]
};

// s = x + residual (s = x without one); y = (s - mean) * rstd * gamma + beta. The statistics are
// those of the rounded s, so that backward sees the same values.
void layer_norm(const OpContext& ctx, const NormInputs& in, const NormOutputs& out);

// y = s / sqrt(mean(s^2) + eps) * gamma (Zhang and Sennrich, arXiv:1910.07467).
void rms_norm(const OpContext& ctx, const NormInputs& in, const NormOutputs& out);

// dsum is a gradient that reaches s directly.
struct NormBackwardInputs {
  Tensor dy;
  Tensor dsum = {};
  Tensor sum;
  Tensor gamma;
  Tensor mean = {};  // of layer normalisation
  Tensor rstd;
};
// dx is the gradient of both x and residual, and may be dy or dsum. dgamma and dbeta (fp32)
// accumulate.
struct NormGradients {
  Tensor dx;
  Tensor dgamma;
  Tensor dbeta = {};  // of layer normalisation
};

// dx = gradient through the normalisation + dsum.
void layer_norm_backward(const OpContext& ctx, const NormBackwardInputs& in,
                         const NormGradients& out);
void rms_norm_backward(const OpContext& ctx, const NormBackwardInputs& in,
                       const NormGradients& out);

}  // namespace ds::ops
