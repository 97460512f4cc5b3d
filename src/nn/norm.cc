// Layer norm and RMS norm: one recording for both, since RMS norm lacks only the mean and the
// shift.
#include <utility>

#include "nn/layers.h"
#include "nn/profile.h"
#include "ops/norm.h"

namespace ds::nn {
namespace {

// fp32 buffer for a parameter's gradient; what a frozen one receives is thrown away.
Tensor gradient_buffer(Tape& tape, ParamId id, const Shape& shape) {
  Tensor gradient = tape.gradients().gradient(id);
  return gradient ? gradient : tape.ctx().workspace(DType::kFloat32, shape);
}

// RMS norm without `beta`.
NormOutput norm(Tape& tape, const Value& x, const Value& residual, ParamId gamma, ParamId beta,
                float eps) {
  const bool rms = beta == kNoParam;
  const OperatorScope op(tape, rms ? "rms_norm" : "layer_norm", gamma);
  if (op) {  // operations per element, and one for the sum
    const int64_t each = rms ? 4 : 5, n = x.data.elements();
    op.work(Arithmetic::elementwise((each + (residual ? 1 : 0)) * n),
            Arithmetic::elementwise(2 * each * n));
  }
  const Shape& shape = x.data.shape();
  const int64_t rows = x.data.elements() / shape[-1];
  NormOutput out;
  out.y = tape.make_value(tape.new_activation(x.data.dtype(), shape));
  if (residual) {
    out.sum = tape.make_value(tape.new_activation(x.data.dtype(), shape));
  } else {
    out.sum = x;
  }
  Tensor mean = rms ? Tensor() : tape.new_activation(DType::kFloat32, {rows});
  Tensor rstd = tape.new_activation(DType::kFloat32, {rows});
  {
    const ParameterGuard g(tape.weights(), gamma), b(tape.weights(), beta);
    const ops::NormInputs in{
        .x = x.data, .residual = residual.data, .gamma = *g, .beta = *b, .eps = eps};
    const ops::NormOutputs to{
        .y = out.y.data, .sum = residual ? out.sum.data : Tensor(), .mean = mean, .rstd = rstd};
    rms ? ops::rms_norm(tape.ctx(), in, to) : ops::layer_norm(tape.ctx(), in, to);
  }
  tape.used(gamma);
  tape.used(beta);
  tape.record([sum = out.sum.data, sum_slot = residual ? out.sum.slot : nullptr, y = out.y.slot,
               x_slot = x.slot, residual_slot = residual.slot, gamma, beta, mean, rstd,
               rms](Tape& t) {
    if (*y) {
      const ParameterGuard g(t.weights(), gamma);
      Tensor dx = t.new_activation(sum.dtype(), sum.shape());
      const ops::NormGradients to{.dx = dx,
                                  .dgamma = gradient_buffer(t, gamma, (*g).shape()),
                                  .dbeta = rms ? Tensor() : gradient_buffer(t, beta, (*g).shape())};
      const ops::NormBackwardInputs in{.dy = y->gradient(),
                                       .dsum = sum_slot ? sum_slot->gradient() : Tensor(),
                                       .sum = sum,
                                       .gamma = *g,
                                       .mean = mean,
                                       .rstd = rstd};
      rms ? ops::rms_norm_backward(t.ctx(), in, to) : ops::layer_norm_backward(t.ctx(), in, to);
      const bool shared = x_slot && residual_slot;
      if (x_slot) x_slot->add(t.ctx(), dx, !shared);
      if (residual_slot) residual_slot->add(t.ctx(), dx, !shared);
    }
    t.used_backward(gamma);
    t.used_backward(beta);
  });
  return out;
}

}  // namespace

NormOutput layer_norm(Tape& tape, const Value& x, const Value& residual, ParamId gamma,
                      ParamId beta, float eps) {
  DS_CHECK(beta != kNoParam, Code::kInternal, "layer norm without its shift");
  return norm(tape, x, residual, gamma, beta, eps);
}

NormOutput rms_norm(Tape& tape, const Value& x, const Value& residual, ParamId gamma, float eps) {
  return norm(tape, x, residual, gamma, kNoParam, eps);
}

}  // namespace ds::nn
