#include "nn/fp8_linear.h"

#include <array>
#include <utility>

#include "ops/linear.h"

namespace ds::nn {
namespace {

// What backward needs of x: not its numbers.
struct Input {
  ops::Fp8Tensor codes;
  std::shared_ptr<GradientSlot> slot;
  DType dtype;
  Shape shape;
};

void backward(Tape& tape, Fp8Linears& fp8, const Input& x, const Tensor& dy, ParamId weight,
              ParamId bias) {
  const OpContext& ctx = tape.ctx();
  const ParameterStore::GradientTarget dw = tape.store().gradient_target(weight);
  Tensor db = bias == kNoParam ? Tensor() : tape.store().gradient(bias);
  if (dw.sum || x.slot) {
    const ops::Fp8Tensor dy_codes = fp8.gradient(
        ctx, weight, dy,
        {.codes = static_cast<bool>(x.slot), .transposed = static_cast<bool>(dw.sum)}, db);
    if (x.slot) {
      Tensor dx = tape.new_activation(x.dtype, x.shape);
      const ParameterGuard w(tape.store(), weight);
      ops::fp8_linear_grad_input(ctx, dy_codes, fp8.weight(ctx, weight, *w), dx);
      x.slot->add(ctx, std::move(dx), true);
    }
    if (Tensor sum = dw.sum) ops::fp8_linear_grad_weight(ctx, dy_codes, x.codes, sum, dw.add);
  } else if (db) {
    ops::linear_grad_bias(ctx, dy, db);
  }
}

}  // namespace

Value fp8_linear(Tape& tape, Fp8Linears& fp8, const Value& x, ParamId weight, ParamId bias) {
  const Parameter& parameter = tape.store().parameters()[weight];
  const bool keeps = tape.recording() && parameter.trainable;
  std::array<int64_t, kMaxDims> sizes{};
  const auto dims = static_cast<size_t>(x.data.dims());
  for (size_t i = 0; i < dims; ++i) sizes[i] = x.data.size(static_cast<int>(i));
  sizes[dims - 1] = parameter.shape[0];
  Value y = tape.make_value(
      tape.new_activation(x.data.dtype(), Shape(std::span<const int64_t>(sizes.data(), dims))));
  ops::Fp8Tensor codes =
      fp8.input(tape.ctx(), weight, x.data, {.codes = true, .transposed = keeps});
  {
    const ParameterGuard w(tape.store(), weight), b(tape.store(), bias);
    ops::fp8_linear(tape.ctx(), codes, fp8.weight(tape.ctx(), weight, *w), *b, y.data);
  }
  tape.used(weight);
  tape.used(bias);
  if (codes.transposed || !keeps) codes.codes = Tensor();
  const Input input{std::move(codes), x.slot, x.data.dtype(), x.data.shape()};
  tape.record([&fp8, input, out = y.slot, weight, bias](Tape& t) {
    if (*out) {
      bool exclusive = false;
      const Tensor dy = out->take(exclusive);
      backward(t, fp8, input, dy, weight, bias);
    }
    t.used_backward(weight);
    t.used_backward(bias);
  });
  return y;
}

}  // namespace ds::nn
