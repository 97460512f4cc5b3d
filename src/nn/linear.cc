// Linear layers, and the low-rank adapters beside their weights.
#include "ops/linear.h"

#include <algorithm>
#include <utility>

#include "nn/fp8_linear.h"
#include "nn/layers.h"
#include "nn/profile.h"
#include "nn/tiled_linear.h"
#include "ops/dropout.h"
#include "ops/elementwise.h"
#include "ops/gemv.h"

namespace ds::nn {
namespace {

Shape with_last(const Shape& shape, int64_t last) {
  std::array<int64_t, kMaxDims> sizes{};
  std::copy(shape.sizes().begin(), shape.sizes().end(), sizes.begin());
  sizes[static_cast<size_t>(shape.dims() - 1)] = last;
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(shape.dims())));
}

// Null where products are of the compute type: in evaluation, and where a layer is not taken.
Fp8Linears* fp8_of(Tape& tape, ParamId weight) {
  Fp8Linears* const all = tape.training() ? tape.weights().fp8() : nullptr;
  return all != nullptr && all->has(weight) ? all : nullptr;
}

bool has_adapter(Tape& tape, ParamId weight) {
  return tape.weights().parameters().adapter(weight) != nullptr;
}

// y = x w^T + b, however the store holds the weight. Decoding asks for few rows; training must sum
// in one order whether it records or recomputes.
void multiply(Tape& tape, const Tensor& x, ParamId weight, ParamId bias, Tensor& y) {
  const ParameterGuard b(tape.weights(), bias);
  if (const CodesGuard codes(tape.weights(), weight); codes) {
    return ops::quantized_linear(tape.ctx(), x, *codes, *b, y);
  }
  if (tape.weights().tiling(weight)) return tiled_linear(tape, x, weight, *b, y);
  const ParameterGuard w(tape.weights(), weight);
  if (!tape.recording() && !tape.training() && ops::few_rows(x)) {
    return ops::gemv(tape.ctx(), x, *w, *b, y);
  }
  ops::linear(tape.ctx(), x, *w, *b, y);
}

Tensor bias_gradient(Tape& tape, ParamId bias) {
  return bias == kNoParam ? Tensor() : tape.gradients().gradient(bias);
}

// The gradients of the weight, where there is a dw, and of the bias.
void parameter_gradients(Tape& tape, const Tensor& x, const Tensor& dy, GradientTarget dw,
                         ParamId bias) {
  Tensor db = bias_gradient(tape, bias);
  if (dw.sum && db) {
    ops::linear_grad_weight_bias(tape.ctx(), dy, x, dw.sum, db, dw.add);
  } else if (dw.sum) {
    ops::linear_grad_weight(tape.ctx(), dy, x, dw.sum, dw.add);
  } else if (db) {
    ops::linear_grad_bias(tape.ctx(), dy, db);
  }
}

// The gradients of x, where there is a dx, of the weight and of the bias.
void multiply_backward(Tape& tape, const Tensor& x, const Tensor& dy, ParamId weight, ParamId bias,
                       Tensor& dx) {
  GradientTarget dw;
  if (tape.weights().tiling(weight)) {
    tiled_linear_backward(tape, x, dy, weight, dx);
  } else {
    if (dx) {
      const ParameterGuard w(tape.weights(), weight);
      ops::linear_grad_input(tape.ctx(), dy, *w, dx);
    }
    dw = tape.gradients().gradient_target(weight);
  }
  parameter_gradients(tape, x, dy, dw, bias);
}

// What the backward of an adapter needs from its forward.
struct AdapterPass {
  Adapter adapter;
  Tensor low;  // scale * dropout(x) a^T, [..., rank]
  RandomStream stream;
  bool dropped = false;
};

Tensor dropped_input(Tape& tape, const AdapterPass& pass, const Tensor& x) {
  if (!pass.dropped) return x;
  Tensor out = tape.new_activation(x.dtype(), x.shape());
  ops::dropout(tape.ctx(), x, Tensor(), pass.adapter.dropout, pass.stream, out);
  return out;
}

// Adds the adapter's part to y.
AdapterPass adapter_forward(Tape& tape, const Adapter& adapter, const Tensor& x, Tensor& y) {
  AdapterPass pass;
  pass.adapter = adapter;
  if (tape.training() && adapter.dropout > 0) {
    pass.dropped = true;
    pass.stream = tape.next_stream();
  }
  const ParameterGuard a(tape.weights(), adapter.a), b(tape.weights(), adapter.b);
  pass.low = tape.new_activation(x.dtype(), with_last(x.shape(), (*a).size(0)));
  ops::linear(tape.ctx(), dropped_input(tape, pass, x), *a, Tensor(), pass.low);
  ops::scale(tape.ctx(), pass.low, adapter.scale, pass.low);
  Tensor update = tape.new_activation(y.dtype(), y.shape());
  ops::linear(tape.ctx(), pass.low, *b, Tensor(), update);
  ops::add(tape.ctx(), y, update, y);
  tape.used(adapter.a);
  tape.used(adapter.b);
  return pass;
}

// Adds to the gradients of a and b, and where there is a dx to that, or writes it.
void adapter_backward(Tape& tape, const AdapterPass& pass, const Tensor& x, const Tensor& dy,
                      Tensor& dx, bool add) {
  const OpContext& ctx = tape.ctx();
  const ParameterGuard a(tape.weights(), pass.adapter.a), b(tape.weights(), pass.adapter.b);
  if (Tensor db = tape.gradients().gradient(pass.adapter.b)) {
    ops::linear_grad_weight(ctx, dy, pass.low, db);
  }
  Tensor dlow = tape.new_activation(pass.low.dtype(), pass.low.shape());
  ops::linear_grad_input(ctx, dy, *b, dlow);
  ops::scale(ctx, dlow, pass.adapter.scale, dlow);
  if (Tensor da = tape.gradients().gradient(pass.adapter.a)) {
    // The mask is drawn again rather than kept.
    ops::linear_grad_weight(ctx, dlow, dropped_input(tape, pass, x), da);
  }
  if (dx && !pass.dropped) {
    ops::linear_grad_input(ctx, dlow, *a, dx, add);
  } else if (dx) {
    Tensor part = add ? tape.new_activation(x.dtype(), x.shape()) : dx;
    ops::linear_grad_input(ctx, dlow, *a, part);
    ops::dropout_backward(ctx, part, pass.adapter.dropout, pass.stream, part);
    if (add) ops::add(ctx, dx, part, dx);
  }
}

// Products of a linear layer and its adapter; backward multiplies once for each gradient. An
// activation after it counts one operation per element each way.
void report_work(const OperatorScope& op, Tape& tape, const Value& x, ParamId weight,
                 const Adapter* adapter, bool activated = false) {
  const ParameterSet& parameters = tape.weights().parameters();
  Arithmetic forward, backward;
  const auto product = [&](ParamId id, bool input_gradient) {
    const Shape& w = parameters[id].shape;
    const Arithmetic once =
        Arithmetic::products(x.data.elements() / x.data.shape()[-1] * w.elements());
    forward += once;
    if (input_gradient) backward += once;
    if (parameters[id].trainable) backward += once;
  };
  product(weight, static_cast<bool>(x.slot));
  if (adapter != nullptr) {
    product(adapter->a, static_cast<bool>(x.slot));
    product(adapter->b, true);
  }
  if (activated) {
    const Arithmetic elements = Arithmetic::elementwise(x.data.elements() / x.data.shape()[-1] *
                                                        parameters[weight].shape[0]);
    forward += elements;
    backward += elements;
  }
  op.work(forward, backward);
}

// The outputs of the layer, of rows that may be padded.
Tensor outputs_of(const Tensor& rows, int64_t outputs) {
  return rows.shape()[-1] == outputs ? rows : rows.slice(rows.dims() - 1, 0, outputs);
}

// Backward of out = x w^T + bias, and of the adapter.
void record_linear(Tape& tape, const Value& x, const std::shared_ptr<GradientSlot>& out,
                   ParamId weight, ParamId bias, const std::shared_ptr<AdapterPass>& adapted) {
  tape.record([x, out, weight, bias, adapted](Tape& t) {
    if (*out) {
      bool exclusive = false;
      const Tensor dy = outputs_of(out->take(exclusive), t.weights().shape(weight)[0]);
      Tensor dx;
      if (x.slot) dx = t.new_activation(x.data.dtype(), x.data.shape());
      multiply_backward(t, x.data, dy, weight, bias, dx);
      if (adapted) adapter_backward(t, *adapted, x.data, dy, dx, true);
      if (x.slot) x.slot->add(t.ctx(), std::move(dx), true);
    }
    t.used_backward(weight);
    t.used_backward(bias);
    if (adapted) {
      t.used_backward(adapted->adapter.a);
      t.used_backward(adapted->adapter.b);
    }
  });
}

ops::Activation activation_of(ops::Gelu kind) {
  return kind == ops::Gelu::kErf ? ops::Activation::kGeluErf : ops::Activation::kGeluTanh;
}

// A linear layer whose sums become pre = x w^T + b and y = gelu(pre) at once.
struct GeluLinear {
  Value pre, y;
  // Set in backward by whoever makes the gradient of pre: whether the bias has its gradient too.
  std::shared_ptr<bool> bias_done = std::make_shared<bool>(false);
};

// Not where weights come in tiles, carry adapters or are cast to 8 bits. Models that only run
// choose by how the weight is stored.
bool fuses_gelu(Tape& tape, ParamId weight) {
  return (tape.recording() || tape.training()) && tape.weights().tiling(weight) == nullptr &&
         fp8_of(tape, weight) == nullptr && !has_adapter(tape, weight);
}

GeluLinear gelu_linear(Tape& tape, const Value& x, const Projection& p, ops::Gelu kind) {
  const OperatorScope op(tape, "linear+gelu", p.weight, true);
  if (op) report_work(op, tape, x, p.weight, nullptr, true);
  GeluLinear layer;
  {
    const ParameterGuard b(tape.weights(), p.bias), w(tape.weights(), p.weight);
    const Shape shape = with_last(x.data.shape(), (*w).size(0));
    layer.y = tape.make_value(tape.new_activation(x.data.dtype(), shape));
    if (tape.recording()) {
      layer.pre = tape.make_value(tape.new_activation(x.data.dtype(), shape));
    }
    ops::linear_activation(tape.ctx(), x.data, *w, *b, activation_of(kind), layer.pre.data,
                           layer.y.data);
  }
  tape.used(p.weight);
  tape.used(p.bias);
  tape.record([x, pre = layer.pre.slot, p, done = layer.bias_done](Tape& t) {
    if (*pre) {
      bool exclusive = false;
      const Tensor dpre = pre->take(exclusive);
      Tensor dx;
      if (x.slot) dx = t.new_activation(x.data.dtype(), x.data.shape());
      multiply_backward(t, x.data, dpre, p.weight, *done ? kNoParam : p.bias, dx);
      if (x.slot) x.slot->add(t.ctx(), std::move(dx), true);
    }
    t.used_backward(p.weight);
    t.used_backward(p.bias);
  });
  return layer;
}

// linear_gelu_linear where both layers are of codes.
Value fp8_gelu(Tape& tape, Fp8Linears& fp8, const Value& x, const Projection& up,
               const Projection& down, ops::Gelu kind) {
  Fp8Hidden hidden;
  {
    const OperatorScope op(tape, "linear", up.weight, true);
    if (op) report_work(op, tape, x, up.weight, nullptr, true);
    hidden = fp8_hidden(tape, fp8, x, up);
  }
  const OperatorScope op(tape, "gelu+linear", down.weight, true);
  if (op) report_work(op, tape, hidden.pre, down.weight, nullptr);
  return fp8_activated(tape, fp8, hidden, activation_of(kind), down);
}

// A layer of codes, with the adapter in the compute type beside it.
Value fp8_adapted(Tape& tape, Fp8Linears& fp8, const Value& x, const Projection& p,
                  const Adapter* adapter) {
  Value y = fp8_linear(tape, fp8, x, p);
  if (adapter == nullptr) return y;
  // Recorded after the layer, so that backward finds the gradient that the layer will take.
  tape.record([x, out = y.slot, pass = adapter_forward(tape, *adapter, x.data, y.data)](Tape& t) {
    if (*out) {
      Tensor dx;
      if (x.slot) dx = t.new_activation(x.data.dtype(), x.data.shape());
      adapter_backward(t, pass, x.data, out->gradient(), dx, false);
      if (x.slot) x.slot->add(t.ctx(), std::move(dx), true);
    }
    t.used_backward(pass.adapter.a);
    t.used_backward(pass.adapter.b);
  });
  return y;
}

// A layer whose rows of outputs are `width` numbers long.
Value linear_of_width(Tape& tape, const Value& x, ParamId weight, ParamId bias, int64_t width) {
  const Adapter* const adapter = tape.weights().parameters().adapter(weight);
  const OperatorScope op(tape, adapter == nullptr ? "linear" : "linear+adapter", weight, true);
  if (op) report_work(op, tape, x, weight, adapter);
  if (Fp8Linears* const fp8 = fp8_of(tape, weight)) {
    return fp8_adapted(tape, *fp8, x, {weight, bias}, adapter);
  }
  const int64_t outputs = tape.weights().shape(weight)[0];
  Value y = tape.make_value(tape.new_activation(x.data.dtype(), with_last(x.data.shape(), width)));
  Tensor made = outputs_of(y.data, outputs);
  multiply(tape, x.data, weight, bias, made);
  tape.used(weight);
  tape.used(bias);
  std::shared_ptr<AdapterPass> adapted;
  if (adapter != nullptr) {
    adapted = std::make_shared<AdapterPass>(adapter_forward(tape, *adapter, x.data, made));
  }
  record_linear(tape, x, y.slot, weight, bias, adapted);
  return y;
}

// Whether a layer's product can write rows that lie farther apart than they are long, and gains by
// that: those of other forms are dense, and small ones are as fast.
bool pads_rows(Tape& tape, const Tensor& x, ParamId weight) {
  ParameterReader& weights = tape.weights();
  return tape.ctx().device->kind() == DeviceKind::kCuda && fp8_of(tape, weight) == nullptr &&
         weights.quantized(weight) == nullptr && weights.parameters().adapter(weight) == nullptr &&
         (tape.recording() || tape.training() || !ops::few_rows(x));
}

}  // namespace

Value linear(Tape& tape, const Value& x, ParamId weight, ParamId bias) {
  return linear_of_width(tape, x, weight, bias, tape.weights().shape(weight)[0]);
}

Value linear_padded(Tape& tape, const Value& x, ParamId weight, ParamId bias) {
  const int64_t outputs = tape.weights().shape(weight)[0];
  const int64_t padded = (outputs + kPaddedTo - 1) / kPaddedTo * kPaddedTo;
  return linear_of_width(tape, x, weight, bias, pads_rows(tape, x.data, weight) ? padded : outputs);
}

Value gated_linear(Tape& tape, const Value& gate, const Value& up, ops::Activation kind,
                   const Projection& down) {
  Fp8Linears* const fp8 = fp8_of(tape, down.weight);
  if (fp8 == nullptr || has_adapter(tape, down.weight)) {
    return linear(tape, gated_activation(tape, gate, up, kind), down.weight, down.bias);
  }
  const OperatorScope op(tape, "gated+linear", down.weight, true);
  if (op) report_work(op, tape, gate, down.weight, nullptr);
  return fp8_gated(tape, *fp8, gate, up, kind, down);
}

Value linear_gelu(Tape& tape, const Value& x, const Projection& p, ops::Gelu kind) {
  if (!fuses_gelu(tape, p.weight)) {
    return activation(tape, linear(tape, x, p.weight, p.bias), activation_of(kind));
  }
  const GeluLinear layer = gelu_linear(tape, x, p, kind);
  tape.record([pre = layer.pre, out = layer.y.slot, p, kind, done = layer.bias_done](Tape& t) {
    if (!*out) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    Tensor dpre = exclusive ? dy : t.new_activation(dy.dtype(), dy.shape());
    Tensor db = bias_gradient(t, p.bias);
    ops::bias_gelu_backward(t.ctx(), dy, pre.data, Tensor(), kind, dpre, db);
    *done = true;
    pre.slot->add(t.ctx(), std::move(dpre), true);
  });
  return layer.y;
}

Value linear_gelu_linear(Tape& tape, const Value& x, const Projection& up, const Projection& down,
                         ops::Gelu kind) {
  if (Fp8Linears* const fp8 = fp8_of(tape, up.weight); fp8 != nullptr && fp8->has(down.weight) &&
                                                       !has_adapter(tape, up.weight) &&
                                                       !has_adapter(tape, down.weight)) {
    return fp8_gelu(tape, *fp8, x, up, down, kind);
  }
  if (!fuses_gelu(tape, up.weight) || !fuses_gelu(tape, down.weight)) {
    return linear(tape, linear_gelu(tape, x, up, kind), down.weight, down.bias);
  }
  const GeluLinear layer = gelu_linear(tape, x, up, kind);
  const OperatorScope op(tape, "linear", down.weight, true);
  if (op) report_work(op, tape, layer.y, down.weight, nullptr);
  const int64_t outputs = tape.weights().shape(down.weight)[0];
  Value z =
      tape.make_value(tape.new_activation(x.data.dtype(), with_last(x.data.shape(), outputs)));
  multiply(tape, layer.y.data, down.weight, down.bias, z.data);
  tape.used(down.weight);
  tape.used(down.bias);
  // y has no other reader, so its gradient need not be made: that of pre comes from the product.
  tape.record([layer, out = z.slot, up, down, kind](Tape& t) {
    if (*out) {
      bool exclusive = false;
      const Tensor dz = out->take(exclusive);
      Tensor dpre = t.new_activation(layer.pre.data.dtype(), layer.pre.data.shape());
      Tensor db = bias_gradient(t, up.bias);
      {
        const ParameterGuard w(t.weights(), down.weight);
        *layer.bias_done =
            ops::linear_grad_input_gelu(t.ctx(), dz, *w, layer.pre.data, kind, dpre, db);
      }
      parameter_gradients(t, layer.y.data, dz, t.gradients().gradient_target(down.weight),
                          down.bias);
      layer.pre.slot->add(t.ctx(), std::move(dpre), true);
    }
    t.used_backward(down.weight);
    t.used_backward(down.bias);
  });
  return z;
}

}  // namespace ds::nn
