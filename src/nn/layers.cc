// Layers around the blocks: embeddings, dropout, sums, and the loss.
#include "nn/layers.h"

#include <algorithm>
#include <utility>

#include "nn/profile.h"
#include "ops/cross_entropy.h"
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
                ParamId positions) {
  const OperatorScope op(tape, "embedding", table);
  Value y;
  {
    const ParameterGuard rows(tape.store(), table);
    const ParameterGuard places(tape.store(), positions);
    y = tape.make_value(
        tape.new_activation((*rows).dtype(), with_appended(ids.shape(), (*rows).size(1))));
    ops::embedding(tape.ctx(), ids, *rows, position_ids, *places, y.data);
  }
  if (op && positions != kNoParam) {
    op.work(Arithmetic::elementwise(y.data.elements()), Arithmetic::elementwise(y.data.elements()));
  }
  tape.used(table);
  tape.used(positions);
  tape.record([ids, table, position_ids, positions, out = y.slot](Tape& t) {
    const auto add = [&](ParamId id, const Tensor& which) {
      if (id == kNoParam) return;
      Tensor gradient = t.store().gradient(id);
      if (gradient && *out) ops::embedding_backward(t.ctx(), which, out->gradient(), gradient);
      t.used_backward(id);
    };
    add(table, ids);
    add(positions, position_ids);
  });
  return y;
}

Value dropout(Tape& tape, const Value& x, double p) {
  if (!tape.training() || p == 0) return x;
  const OperatorScope op(tape, "dropout");
  const RandomStream stream = tape.next_stream();
  const int64_t first = tape.first_sample() * (x.data.elements() / x.data.size(0));
  Value y = tape.make_value(tape.new_activation(x.data.dtype(), x.data.shape()));
  ops::dropout(tape.ctx(), x.data, Tensor(), p, stream, first, y.data);
  tape.record([in = x.slot, out = y.slot, p, stream, first](Tape& t) {
    if (!*out || !in) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    Tensor dx = exclusive ? dy : t.new_activation(dy.dtype(), dy.shape());
    ops::dropout_backward(t.ctx(), dy, p, stream, first, dx);
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

Value cross_entropy(Tape& tape, const Value& logits, const Tensor& labels, int64_t valid,
                    int64_t& counted) {
  const OperatorScope op(tape, "cross_entropy");
  if (op) {
    op.work(Arithmetic::elementwise(logits.data.elements()),
            Arithmetic::elementwise(logits.data.elements()));
  }
  const int64_t vocab = logits.data.shape()[-1];
  const int64_t rows = logits.data.elements() / vocab;
  const Tensor flat = logits.data.view({rows, vocab});
  DS_CHECK(on_host(labels), Code::kInternal, "labels are read on the host");
  const Tensor targets = to_device(labels.view({rows}), tape.ctx().device);
  Tensor losses = tape.new_activation(DType::kFloat32, {rows});
  const int32_t* label = labels.data<int32_t>();
  counted = rows - std::count(label, label + rows, ops::kIgnoreLabel);
  // While training, the logits become their gradient in the same pass that reads them: nothing
  // else looks at them any more.
  const bool fused = tape.recording() && logits.slot;
  const float share = counted == 0 ? 0.0f : 1.0f / static_cast<float>(counted);
  Tensor gradient = flat;
  if (fused) {
    ops::cross_entropy_fused(tape.ctx(), gradient, targets, valid, tape.loss_gradient() * share,
                             losses);
  } else {
    Tensor lse = tape.new_activation(DType::kFloat32, {rows});
    ops::cross_entropy(tape.ctx(), flat, targets, valid, losses, lse);
  }
  // The mean is a number of the host: who trains asks for it at once.
  const std::shared_ptr<Device> host = host_memory_of(tape.ctx().device);
  const Tensor each = to_host(losses, host, MemoryTag::kActivations);
  double total = 0;
  const float* loss = each.data<float>();
  for (int64_t i = 0; i < rows; ++i) {
    if (label[i] != ops::kIgnoreLabel) total += loss[i];
  }
  Value mean = tape.make_value(Tensor::empty(host, DType::kFloat32, {}, MemoryTag::kActivations));
  *mean.data.data<float>() =
      counted == 0 ? 0.0f : static_cast<float>(total / static_cast<double>(counted));
  if (!fused) return mean;
  tape.record([gradient, shape = logits.data.shape(), in = logits.slot,
               expected = tape.loss_gradient(), out = mean.slot](Tape& t) {
    if (!*out) return;
    const float upstream = *out->gradient().data<float>();
    Tensor dlogits = gradient;
    if (upstream != expected) ops::scale(t.ctx(), dlogits, upstream / expected, dlogits);
    in->add(t.ctx(), dlogits.view(shape), true);
  });
  return mean;
}

}  // namespace ds::nn
