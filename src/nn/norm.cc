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
    Tensor sum = residual ? out.sum.data : Tensor();
    if (rms) {
      ops::rms_norm(tape.ctx(), x.data, residual.data, *g, eps, out.y.data, sum, rstd);
    } else {
      ops::layer_norm(tape.ctx(), x.data, residual.data, *g, *b, eps, out.y.data, sum, mean, rstd);
    }
  }
  tape.used(gamma);
  tape.used(beta);
  tape.record([sum = out.sum.data, sum_slot = residual ? out.sum.slot : nullptr, y = out.y.slot,
               x_slot = x.slot, residual_slot = residual.slot, gamma, beta, mean, rstd,
               rms](Tape& t) {
    if (*y) {
      const ParameterGuard g(t.weights(), gamma);
      Tensor dx = t.new_activation(sum.dtype(), sum.shape());
      Tensor dgamma = gradient_buffer(t, gamma, (*g).shape());
      const Tensor dsum = sum_slot ? sum_slot->gradient() : Tensor();
      if (rms) {
        ops::rms_norm_backward(t.ctx(), y->gradient(), dsum, sum, *g, rstd, dx, dgamma);
      } else {
        Tensor dbeta = gradient_buffer(t, beta, (*g).shape());
        ops::layer_norm_backward(t.ctx(), y->gradient(), dsum, sum, *g, mean, rstd, dx, dgamma,
                                 dbeta);
      }
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
