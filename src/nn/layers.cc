#include "nn/layers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace ds::nn {
namespace {

Shape with_last(const Shape& shape, int64_t last) {
  std::array<int64_t, kMaxDims> sizes{};
  std::copy(shape.sizes().begin(), shape.sizes().end(), sizes.begin());
  sizes[static_cast<size_t>(shape.dims() - 1)] = last;
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(shape.dims())));
}

Shape with_appended(const Shape& shape, int64_t last) {
  std::array<int64_t, kMaxDims> sizes{};
  std::copy(shape.sizes().begin(), shape.sizes().end(), sizes.begin());
  sizes[static_cast<size_t>(shape.dims())] = last;
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(shape.dims() + 1)));
}

// The thirds of packed qkv [B, T, 3HD] as [B, T, H, D] views.
std::array<Tensor, 3> split_qkv(const Tensor& qkv, int64_t heads) {
  const int64_t batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2) / 3;
  const Tensor parts = qkv.view({batch, length, 3, heads, width / heads});
  return {parts.select(2, 0), parts.select(2, 1), parts.select(2, 2)};
}

}  // namespace

Value embedding(Tape& tape, const Tensor& ids, ParamId table, const Tensor& position_ids,
                ParamId positions) {
  Value y;
  {
    const ParameterGuard rows(tape.store(), table);
    const ParameterGuard places(tape.store(), positions);
    y = tape.make_value(
        tape.new_activation((*rows).dtype(), with_appended(ids.shape(), (*rows).size(1))));
    ops::embedding(tape.ctx(), ids, *rows, position_ids, *places, y.data);
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

NormOutput layer_norm(Tape& tape, const Value& x, const Value& residual, ParamId gamma,
                      ParamId beta, float eps) {
  const Shape& shape = x.data.shape();
  const int64_t rows = x.data.elements() / shape[-1];
  NormOutput out;
  out.y = tape.make_value(tape.new_activation(x.data.dtype(), shape));
  if (residual) {
    out.sum = tape.make_value(tape.new_activation(x.data.dtype(), shape));
  } else {
    out.sum = x;
  }
  Tensor mean = tape.new_activation(DType::kFloat32, {rows});
  Tensor rstd = tape.new_activation(DType::kFloat32, {rows});
  {
    const ParameterGuard g(tape.store(), gamma), b(tape.store(), beta);
    Tensor sum = residual ? out.sum.data : Tensor();
    ops::layer_norm(tape.ctx(), x.data, residual.data, *g, *b, eps, out.y.data, sum, mean, rstd);
  }
  tape.used(gamma);
  tape.used(beta);
  tape.record([sum = out.sum.data, sum_slot = residual ? out.sum.slot : nullptr, y = out.y.slot,
               x_slot = x.slot, residual_slot = residual.slot, gamma, beta, mean, rstd](Tape& t) {
    if (*y) {
      const ParameterGuard g(t.store(), gamma);
      Tensor dx = t.new_activation(sum.dtype(), sum.shape());
      Tensor dgamma = t.store().gradient(gamma), dbeta = t.store().gradient(beta);
      if (!dgamma) dgamma = t.ctx().workspace(DType::kFloat32, (*g).shape());
      if (!dbeta) dbeta = t.ctx().workspace(DType::kFloat32, (*g).shape());
      const Tensor dsum = sum_slot ? sum_slot->gradient() : Tensor();
      ops::layer_norm_backward(t.ctx(), y->gradient(), dsum, sum, *g, mean, rstd, dx, dgamma,
                               dbeta);
      const bool shared = x_slot && residual_slot;
      if (x_slot) x_slot->add(t.ctx(), dx, !shared);
      if (residual_slot) residual_slot->add(t.ctx(), dx, !shared);
    }
    t.used_backward(gamma);
    t.used_backward(beta);
  });
  return out;
}

Value linear(Tape& tape, const Value& x, ParamId weight, ParamId bias) {
  Value y;
  {
    const ParameterGuard w(tape.store(), weight), b(tape.store(), bias);
    y = tape.make_value(
        tape.new_activation(x.data.dtype(), with_last(x.data.shape(), (*w).size(0))));
    ops::linear(tape.ctx(), x.data, *w, *b, y.data);
  }
  tape.used(weight);
  tape.used(bias);
  tape.record([x, out = y.slot, weight, bias](Tape& t) {
    if (*out) {
      bool exclusive = false;
      const Tensor dy = out->take(exclusive);
      if (x.slot) {
        const ParameterGuard w(t.store(), weight);
        Tensor dx = t.new_activation(x.data.dtype(), x.data.shape());
        ops::linear_grad_input(t.ctx(), dy, *w, dx);
        x.slot->add(t.ctx(), std::move(dx), true);
      }
      if (Tensor dw = t.store().gradient(weight)) {
        ops::linear_grad_weight(t.ctx(), dy, x.data, dw);
      }
      if (bias != kNoParam) {
        if (Tensor db = t.store().gradient(bias)) ops::linear_grad_bias(t.ctx(), dy, db);
      }
    }
    t.used_backward(weight);
    t.used_backward(bias);
  });
  return y;
}

Value bias_gelu(Tape& tape, const Value& x, ParamId bias, ops::Gelu kind) {
  Value y = tape.make_value(tape.new_activation(x.data.dtype(), x.data.shape()));
  {
    const ParameterGuard b(tape.store(), bias);
    ops::bias_gelu(tape.ctx(), x.data, *b, kind, y.data);
  }
  tape.used(bias);
  tape.record([x, out = y.slot, bias, kind](Tape& t) {
    if (*out) {
      bool exclusive = false;
      const Tensor dy = out->take(exclusive);
      Tensor dx = exclusive ? dy : t.new_activation(x.data.dtype(), x.data.shape());
      const ParameterGuard b(t.store(), bias);
      Tensor db = bias == kNoParam ? Tensor() : t.store().gradient(bias);
      ops::bias_gelu_backward(t.ctx(), dy, x.data, *b, kind, dx, db);
      if (x.slot) x.slot->add(t.ctx(), std::move(dx), true);
    }
    t.used_backward(bias);
  });
  return y;
}

Value dropout(Tape& tape, const Value& x, double p) {
  if (!tape.training() || p == 0) return x;
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

Value self_attention(Tape& tape, const Value& qkv, const SelfAttention& spec) {
  const int64_t batch = qkv.data.size(0), length = qkv.data.size(1);
  const int64_t width = qkv.data.size(2) / 3;
  const std::array<Tensor, 3> parts = split_qkv(qkv.data, spec.heads);
  ops::AttentionOptions options;
  options.causal = spec.causal;
  options.scale = spec.scale;
  options.first_batch = tape.first_sample();
  if (tape.training() && spec.dropout > 0) {
    options.dropout = spec.dropout;
    options.stream = tape.next_stream();
  }
  Value y = tape.make_value(tape.new_activation(qkv.data.dtype(), {batch, length, width}));
  Tensor lse = tape.new_activation(DType::kFloat32, {batch, spec.heads, length});
  Tensor out = y.data.view({batch, length, spec.heads, width / spec.heads});
  ops::attention(tape.ctx(), parts[0], parts[1], parts[2], spec.key_mask, options, out, lse);
  tape.record([qkv, y_data = y.data, y_slot = y.slot, lse, options, heads = spec.heads,
               mask = spec.key_mask](Tape& t) {
    if (!*y_slot || !qkv.slot) return;
    bool exclusive = false;
    const Tensor dy = y_slot->take(exclusive);
    Tensor dqkv = t.new_activation(qkv.data.dtype(), qkv.data.shape());
    const std::array<Tensor, 3> in = split_qkv(qkv.data, heads);
    std::array<Tensor, 3> grads = split_qkv(dqkv, heads);
    const Shape shape = in[0].shape();
    ops::attention_backward(t.ctx(), dy.view(shape), in[0], in[1], in[2], mask, options,
                            y_data.view(shape), lse, grads[0], grads[1], grads[2]);
    qkv.slot->add(t.ctx(), std::move(dqkv), true);
  });
  return y;
}

Value cached_attention(Tape& tape, const Value& qkv, const SelfAttention& spec, KvCache& cache,
                       int layer) {
  DS_CHECK(!tape.recording(), Code::kInternal, "decoding is not recorded");
  const int64_t batch = qkv.data.size(0), length = qkv.data.size(1);
  const int64_t width = qkv.data.size(2) / 3, end = cache.length() + length;
  DS_CHECK(end <= cache.capacity(), Code::kInternal, "the KV cache is full");
  const std::array<Tensor, 3> parts = split_qkv(qkv.data, spec.heads);
  const size_t row = static_cast<size_t>(width * dtype_size(qkv.data.dtype()));
  for (int part = 0; part < 2; ++part) {
    const Tensor& from = parts[static_cast<size_t>(part + 1)];
    const Tensor to = cache.view(layer, part, cache.length(), end);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < length; ++t) {
        std::memcpy(to.select(0, b).select(0, t).raw(), from.select(0, b).select(0, t).raw(), row);
      }
    }
  }
  ops::AttentionOptions options;
  options.causal = spec.causal;
  options.scale = spec.scale;
  Value y = tape.make_value(tape.new_activation(qkv.data.dtype(), {batch, length, width}));
  Tensor lse = tape.ctx().workspace(DType::kFloat32, {batch, spec.heads, length});
  Tensor out = y.data.view({batch, length, spec.heads, width / spec.heads});
  ops::attention(tape.ctx(), parts[0], cache.view(layer, 0, 0, end), cache.view(layer, 1, 0, end),
                 spec.key_mask, options, out, lse);
  return y;
}

Value cross_entropy(Tape& tape, const Value& logits, const Tensor& labels, int64_t valid,
                    int64_t& counted) {
  const int64_t vocab = logits.data.shape()[-1];
  const int64_t rows = logits.data.elements() / vocab;
  const Tensor flat = logits.data.view({rows, vocab});
  const Tensor targets = labels.view({rows});
  Tensor losses = tape.new_activation(DType::kFloat32, {rows});
  Tensor lse = tape.new_activation(DType::kFloat32, {rows});
  ops::cross_entropy(tape.ctx(), flat, targets, valid, losses, lse);

  counted = 0;
  double total = 0;
  const int32_t* label = targets.data<int32_t>();
  const float* loss = losses.data<float>();
  for (int64_t i = 0; i < rows; ++i) {
    if (label[i] == ops::kIgnoreLabel) continue;
    total += loss[i];
    ++counted;
  }
  Value mean = tape.make_value(tape.new_activation(DType::kFloat32, {}));
  *mean.data.data<float>() = counted == 0 ? 0.0f : static_cast<float>(total / counted);
  tape.record([logits_data = logits.data, in = logits.slot, flat, targets, valid, lse, counted,
               out = mean.slot](Tape& t) {
    if (!*out || !in) return;
    const float upstream = *out->gradient().data<float>();
    Tensor dlogits = flat;  // in place: nothing reads the logits any more
    const float scale = counted == 0 ? 0.0f : upstream / static_cast<float>(counted);
    ops::cross_entropy_backward(t.ctx(), flat, targets, valid, lse, scale, dlogits);
    in->add(t.ctx(), logits_data, true);
  });
  return mean;
}

}  // namespace ds::nn
