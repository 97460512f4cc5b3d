// Linear layers of 8-bit codes (kernels/fp8/fp8.h): casts of bf16 matrices, and the three products.
// On a GPU cuBLASLt multiplies codes, for which each product reads both operands along its sums;
// what it refuses, and everything on the CPU, is widened to bf16 first, which rounds nothing.
#pragma once

#include <span>

#include "kernels/fp8/fp8.h"
#include "ops/context.h"

namespace ds::ops {

using kernels::Fp8Format;

// Of one tensor that is cast: fp32 of one element each, where operators run. `amax` gathers the
// largest |x| of the step.
struct Fp8Scaling {
  Tensor scale, inverse, amax;
};

struct Fp8Tensor {
  Fp8Format format = Fp8Format::kE4M3;
  Tensor codes;       // uint8 [rows, columns], or empty
  Tensor transposed;  // uint8 [columns, rows], or empty
  Tensor inverse;     // of the scale
};

// Whether products here want codes along their sums, and so transposed copies for two of three.
bool fp8_wants_transposed(const OpContext& ctx);

// Fills what `out` has of codes; x is bf16 [..., columns], or some columns of a matrix. `sums`
// (fp32 [columns], may be empty) += the column sums of x, from the same reading.
void fp8_cast(const OpContext& ctx, const Tensor& x, const Fp8Scaling& scaling, Fp8Tensor& out,
              Tensor& sums);
// Before the first cast of a tensor that has no scale yet: makes it from x.
void fp8_first_scale(const OpContext& ctx, const Tensor& x, Fp8Format format, int margin,
                     Fp8Scaling& scaling);

// y[..., N] = x[..., K] w[N, K]^T + bias; y and bias bf16, bias may be empty.
void fp8_linear(const OpContext& ctx, const Fp8Tensor& x, const Fp8Tensor& w, const Tensor& bias,
                Tensor& y);
// dx[..., K] = dy[..., N] w[N, K]; dx bf16.
void fp8_linear_grad_input(const OpContext& ctx, const Fp8Tensor& dy, const Fp8Tensor& w,
                           Tensor& dx);
// dw[N, K] (fp32) = dy[..., N]^T x[..., K], added to what is there when `accumulate`.
void fp8_linear_grad_weight(const OpContext& ctx, const Fp8Tensor& dy, const Fp8Tensor& x,
                            Tensor& dw, bool accumulate);

// Delayed scaling at the end of a step: see kernels::Fp8Update. Tensors [n], history [n, length].
struct Fp8Histories {
  std::span<const Fp8Format> formats;  // of kinds; tensor t is of kind t % kinds
  bool most_recent = false;
  int margin = 0;
  Tensor amax, history, scale, inverse;
};
void fp8_update(const OpContext& ctx, const Fp8Histories& all);

}  // namespace ds::ops
