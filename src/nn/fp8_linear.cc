#include "nn/fp8_linear.h"

#include <array>
#include <utility>

#include "ops/linear.h"

namespace ds::nn {
namespace {

// What backward needs of a layer's input: not its numbers.
struct Input {
  ops::Fp8Tensor codes;
  DType dtype = DType::kBFloat16;
  Shape shape;
};

// The gradients of the weight and the bias; the returned one of the input, unless nobody wants it.
Tensor backward(Tape& tape, Fp8Linears& fp8, const Input& x, const ops::Fp8Source& dy,
                const Projection& p, bool wants_dx) {
  const OpContext& ctx = tape.ctx();
  const GradientTarget dw = tape.gradients().gradient_target(p.weight);
  Tensor db = p.bias == kNoParam ? Tensor() : tape.gradients().gradient(p.bias), dx;
  if (dw.sum || wants_dx) {
    const ops::Fp8Tensor dy_codes = fp8.gradient(
        ctx, p.weight, dy, {.codes = wants_dx, .transposed = static_cast<bool>(dw.sum)}, db);
    if (wants_dx) {
      dx = tape.new_activation(x.dtype, x.shape);
      const ParameterGuard w(tape.weights(), p.weight);
      const ops::Fp8Tensor codes =
          fp8.weight(ctx, p.weight, *w, {.codes = false, .transposed = true});
      ops::fp8_linear_grad_input(ctx, dy_codes, codes, dx);
    }
    if (Tensor sum = dw.sum) ops::fp8_linear_grad_weight(ctx, dy_codes, x.codes, sum, dw.add);
  } else if (db) {
    ops::linear_grad_bias(ctx, ops::fp8_made(ctx, dy), db);
  }
  return dx;
}

Value forward(Tape& tape, Fp8Linears& fp8, const ops::Fp8Source& x, const Projection& p,
              Input& kept) {
  const OpContext& ctx = tape.ctx();
  const Parameter& parameter = tape.weights().parameters()[p.weight];
  const bool keeps = tape.recording() && parameter.trainable;
  std::array<int64_t, kMaxDims> sizes{};
  const auto dims = static_cast<size_t>(x.x.dims());
  for (size_t i = 0; i < dims; ++i) sizes[i] = x.x.size(static_cast<int>(i));
  sizes[dims - 1] = parameter.shape[0];
  Value y = tape.make_value(
      tape.new_activation(x.x.dtype(), Shape(std::span<const int64_t>(sizes.data(), dims))));
  ops::Fp8Tensor codes = fp8.input(ctx, p.weight, x, {.codes = true, .transposed = keeps});
  {
    const ParameterGuard w(tape.weights(), p.weight), b(tape.weights(), p.bias);
    const ops::Fp8Tensor weight =
        fp8.weight(ctx, p.weight, *w, {.codes = true, .transposed = false});
    ops::fp8_linear(ctx, codes, weight, *b, y.data, fp8.options().fast_accumulation);
  }
  tape.used(p.weight);
  tape.used(p.bias);
  if (codes.transposed || !keeps) codes.codes = Tensor();
  kept = {std::move(codes), x.x.dtype(), x.x.shape()};
  return y;
}

// Records a layer's backward: body(tape, dy) when there is a gradient of its output.
template <class Body>
void record(Tape& tape, const Projection& p, std::shared_ptr<GradientSlot> out, Body body) {
  tape.record([p, out = std::move(out), body = std::move(body)](Tape& t) {
    if (*out) {
      bool exclusive = false;
      body(t, out->take(exclusive));
    }
    t.used_backward(p.weight);
    t.used_backward(p.bias);
  });
}

}  // namespace

Value fp8_linear(Tape& tape, Fp8Linears& fp8, const Value& x, const Projection& p) {
  Input input;
  const Value y = forward(tape, fp8, x.data, p, input);
  record(tape, p, y.slot, [&fp8, input, slot = x.slot, p](Tape& t, const Tensor& dy) {
    Tensor dx = backward(t, fp8, input, dy, p, slot != nullptr);
    if (slot) slot->add(t.ctx(), std::move(dx), true);
  });
  return y;
}

Fp8Hidden fp8_hidden(Tape& tape, Fp8Linears& fp8, const Value& x, const Projection& up) {
  Input input;
  Fp8Hidden hidden{forward(tape, fp8, x.data, up, input), std::make_shared<ops::Fp8Source>()};
  tape.record([&fp8, input, slot = x.slot, up, left = hidden.gradient](Tape& t) {
    if (left->x) {
      const ops::Fp8Source dy = std::exchange(*left, {});
      Tensor dx = backward(t, fp8, input, dy, up, slot != nullptr);
      if (slot) slot->add(t.ctx(), std::move(dx), true);
    }
    t.used_backward(up.weight);
    t.used_backward(up.bias);
  });
  return hidden;
}

Value fp8_activated(Tape& tape, Fp8Linears& fp8, const Fp8Hidden& hidden, ops::Activation f,
                    const Projection& down) {
  Input input;
  const Tensor& pre = hidden.pre.data;
  const Value y = forward(tape, fp8, ops::Fp8Source::value(pre, f), down, input);
  record(tape, down, y.slot,
         [&fp8, input, pre, f, down, left = hidden.gradient](Tape& t, const Tensor& dy) {
           *left = ops::Fp8Source::slope(backward(t, fp8, input, dy, down, true), pre, f);
         });
  return y;
}

Value fp8_gated(Tape& tape, Fp8Linears& fp8, const Value& gate, const Value& up, ops::Activation f,
                const Projection& down) {
  Input input;
  const Value y = forward(tape, fp8, ops::Fp8Source::gated(gate.data, up.data, f), down, input);
  record(tape, down, y.slot, [&fp8, input, gate, up, f, down](Tape& t, const Tensor& dy) {
    const Tensor inner = backward(t, fp8, input, dy, down, true);
    Tensor dgate = gate.data, dup = up.data;  // in place: nothing reads them any more
    ops::gated_activation_backward(t.ctx(), inner, gate.data, up.data, f, dgate, dup);
    if (gate.slot) gate.slot->add(t.ctx(), std::move(dgate), true);
    if (up.slot) up.slot->add(t.ctx(), std::move(dup), true);
  });
  return y;
}

}  // namespace ds::nn
