// Linear layers of 8-bit codes (kernels/fp8/fp8.h): casts of bf16 matrices, and the three products.
// On a GPU cuBLASLt multiplies codes, for which each product reads both operands along its sums;
// what it refuses, and everything on the CPU, is widened to bf16 first, which rounds nothing.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "kernels/fp8/fp8.h"
#include "ops/activation.h"
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

// What is cast: a tensor, bf16 [..., columns] or some columns of a matrix; or what an activation
// makes of it, with the bits that its own operator would leave in bf16. On a GPU that is made while
// it is cast, and never stored.
struct Fp8Source {
  Fp8Source() = default;
  Fp8Source(Tensor tensor) : x(std::move(tensor)) {}
  // f(x)
  static Fp8Source value(Tensor x, Activation f) { return {std::move(x), f, {}, {}}; }
  // f(gate) * up
  static Fp8Source gated(Tensor gate, Tensor up, Activation f) {
    return {std::move(gate), f, std::move(up), {}};
  }
  // dy * f'(x)
  static Fp8Source slope(Tensor dy, Tensor x, Activation f) {
    return {std::move(x), f, {}, std::move(dy)};
  }

  Tensor x;
  std::optional<Activation> activation;
  Tensor up, dy;

 private:
  Fp8Source(Tensor x_, Activation f, Tensor up_, Tensor dy_)
      : x(std::move(x_)), activation(f), up(std::move(up_)), dy(std::move(dy_)) {}
};
// That tensor.
Tensor fp8_made(const OpContext& ctx, const Fp8Source& source);

// Whether products here want codes along their sums, and so transposed copies for two of three.
bool fp8_wants_transposed(const OpContext& ctx);

// Fills what `out` has of codes. `sums` (fp32 [columns], may be empty) += the column sums of what
// is cast, from the same reading.
void fp8_cast(const OpContext& ctx, const Fp8Source& x, const Fp8Scaling& scaling, Fp8Tensor& out,
              Tensor& sums);
// Before the first cast of a tensor: makes its scale from x, unless it has one.
void fp8_first_scale(const OpContext& ctx, const Tensor& x, Fp8Format format, int margin,
                     Fp8Scaling& scaling);

// y[..., N] = x[..., K] w[N, K]^T + bias; y and bias bf16, bias may be empty. `fast`: a GPU's
// products of codes may keep less than fp32 of their sums (kernels::Fp8Matmul).
void fp8_linear(const OpContext& ctx, const Fp8Tensor& x, const Fp8Tensor& w, const Tensor& bias,
                Tensor& y, bool fast = false);
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
  Tensor amax, history, scale, inverse;  // `inverse` may be [tensors, n], of which column 0 counts
};
void fp8_update(const OpContext& ctx, const Fp8Histories& all);

}  // namespace ds::ops
