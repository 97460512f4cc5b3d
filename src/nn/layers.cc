// Layers around the blocks: embeddings, dropout and sums.
#include "nn/layers.h"

#include <algorithm>
#include <utility>

#include "nn/profile.h"
#include "ops/dropout.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "tensor/transfer.h"

namespace ds::nn {
namespace {

Shape with_appended(const Shape& shape, int64_t last) {
  std::array<int64_t, kMaxDims> sizes{};
  std::copy(shape.sizes().begin(), shape.sizes().end(), sizes.begin());
  sizes[static_cast<size_t>(shape.dims())] = last;
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(shape.dims() + 1)));
}

}  // namespace

Value embedding(Tape& tape, const Tensor& ids, ParamId table, const Tensor& position_ids,
                ParamId positions, int64_t padding) {
  const OperatorScope op(tape, "embedding", table);
  Value y;
  {
    const ParameterGuard rows(tape.weights(), table);
    const ParameterGuard places(tape.weights(), positions);
    y = tape.make_value(
        tape.new_activation((*rows).dtype(), with_appended(ids.shape(), (*rows).size(1))));
    ops::embedding(tape.ctx(), ids, *rows, position_ids, *places, y.data);
  }
  if (op && positions != kNoParam) {
    op.work(Arithmetic::elementwise(y.data.elements()), Arithmetic::elementwise(y.data.elements()));
  }
  tape.used(table);
  tape.used(positions);
  tape.record([ids, table, position_ids, positions, padding, out = y.slot](Tape& t) {
    const auto add = [&](ParamId id, const Tensor& which, int64_t without) {
      if (id == kNoParam) return;
      Tensor gradient = t.gradients().gradient(id);
      if (gradient && *out) {
        ops::embedding_backward(t.ctx(), which, out->gradient(), gradient, without);
      }
      t.used_backward(id);
    };
    add(table, ids, padding);
    add(positions, position_ids, -1);
  });
  return y;
}

Value dropout(Tape& tape, const Value& x, double p) {
  if (!tape.training() || p == 0) return x;
  const OperatorScope op(tape, "dropout");
  const RandomStream stream = tape.next_stream();
  Value y = tape.make_value(tape.new_activation(x.data.dtype(), x.data.shape()));
  ops::dropout(tape.ctx(), x.data, Tensor(), p, stream, y.data);
  tape.record([in = x.slot, out = y.slot, p, stream](Tape& t) {
    if (!*out || !in) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    Tensor dx = exclusive ? dy : t.new_activation(dy.dtype(), dy.shape());
    ops::dropout_backward(t.ctx(), dy, p, stream, dx);
    in->add(t.ctx(), std::move(dx), true);
  });
  return y;
}

Value add(Tape& tape, const Value& a, const Value& b) {
  const OperatorScope op(tape, "add");
  if (op) op.work(Arithmetic::elementwise(a.data.elements()), {});
  Value y = tape.make_value(tape.new_activation(a.data.dtype(), a.data.shape()));
  ops::add(tape.ctx(), a.data, b.data, y.data);
  tape.record([a_slot = a.slot, b_slot = b.slot, out = y.slot](Tape& t) {
    if (!*out) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    const bool shared = a_slot && b_slot;
    if (a_slot) a_slot->add(t.ctx(), dy, exclusive && !shared);
    if (b_slot) b_slot->add(t.ctx(), dy, exclusive && !shared);
  });
  return y;
}

Value reshaped(Tape& tape, const Value& x, const Shape& shape) {
  Value y{x.data.view(shape), x.slot ? std::make_shared<GradientSlot>() : nullptr};
  tape.record([in = x.slot, out = y.slot, before = x.data.shape()](Tape& t) {
    if (!out || !*out) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    in->add(t.ctx(), dy.view(before), exclusive);
  });
  return y;
}

Value select_position(Tape& tape, const Value& x, int64_t position) {
  const OperatorScope op(tape, "select_position");
  const int64_t batch = x.data.size(0), length = x.data.size(1), width = x.data.size(2);
  const int64_t row = width * dtype_size(x.data.dtype());
  Value y = tape.make_value(tape.new_activation(x.data.dtype(), {batch, width}));
  const auto chosen = [=](const Tensor& whole) {
    return Rows{static_cast<std::byte*>(whole.raw()) + position * row, length * row};
  };
  copy_rows(*tape.ctx().device, {y.data.raw(), row}, chosen(x.data), row, batch);
  tape.record([in = x.slot, out = y.slot, shape = x.data.shape(), batch, row, chosen](Tape& t) {
    if (!*out || !in) return;
    const Tensor& dy = out->gradient();
    Device& device = *t.ctx().device;
    Tensor dx = t.new_activation(dy.dtype(), shape);
    device.clear(dx.raw(), dx.bytes(), device.default_stream());
    copy_rows(device, chosen(dx), {dy.raw(), row}, row, batch);
    in->add(t.ctx(), std::move(dx), true);
  });
  return y;
}

}  // namespace ds::nn
