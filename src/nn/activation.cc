// Activations between linear layers.
#include <utility>

#include "nn/layers.h"
#include "nn/profile.h"

namespace ds::nn {
namespace {

// One operation per element, and as many for each gradient.
void report_elements(const OperatorScope& op, const Value& x, int64_t inputs) {
  if (op) {
    op.work(Arithmetic::elementwise(inputs * x.data.elements()),
            Arithmetic::elementwise(inputs * x.data.elements()));
  }
}

}  // namespace

Value activation(Tape& tape, const Value& x, ops::Activation kind) {
  const OperatorScope op(tape, "activation");
  report_elements(op, x, 1);
  Value y = tape.make_value(tape.new_activation(x.data.dtype(), x.data.shape()));
  ops::activation(tape.ctx(), x.data, kind, y.data);
  tape.record([x, out = y.slot, kind](Tape& t) {
    if (!*out || !x.slot) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    Tensor dx = exclusive ? dy : t.new_activation(x.data.dtype(), x.data.shape());
    ops::activation_backward(t.ctx(), dy, x.data, kind, dx);
    x.slot->add(t.ctx(), std::move(dx), true);
  });
  return y;
}

Value gated_activation(Tape& tape, const Value& gate, const Value& up, ops::Activation kind) {
  const OperatorScope op(tape, "gated_activation");
  report_elements(op, up, 2);
  Value y = tape.make_value(tape.new_activation(gate.data.dtype(), gate.data.shape()));
  ops::gated_activation(tape.ctx(), gate.data, up.data, kind, y.data);
  tape.record([gate, up, out = y.slot, kind](Tape& t) {
    if (!*out) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    Tensor dgate = gate.data, dup = up.data;  // in place: nothing reads them any more
    ops::gated_activation_backward(t.ctx(), dy, gate.data, up.data, kind, dgate, dup);
    if (gate.slot) gate.slot->add(t.ctx(), std::move(dgate), true);
    if (up.slot) up.slot->add(t.ctx(), std::move(dup), true);
  });
  return y;
}

}  // namespace ds::nn
