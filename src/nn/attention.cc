// Attention and what prepares it: views of packed projections, rotary positions, tokens seen
// before.
#include "ops/attention.h"

#include <utility>

#include "nn/layers.h"
#include "nn/profile.h"
#include "ops/rotary.h"

namespace ds::nn {
namespace {

// [B, T, H, D] of a tensor that may still be [B, T, H * D].
Tensor as_heads(const Tensor& x, int64_t heads) {
  if (x.dims() == 4) return x;
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads});
}

std::array<Tensor, 3> qkv_views(const Tensor& packed, int64_t heads, QkvLayout layout) {
  const int64_t batch = packed.size(0), length = packed.size(1);
  const int64_t size = packed.size(2) / (3 * heads);
  const bool thirds = layout == QkvLayout::kThirds;
  const Tensor parts = thirds ? packed.view({batch, length, 3, heads, size})
                              : packed.view({batch, length, heads, 3, size});
  const int dim = thirds ? 2 : 3;
  return {parts.select(dim, 0), parts.select(dim, 1), parts.select(dim, 2)};
}

ops::AttentionOptions attention_options(Tape& tape, const Attention& spec) {
  ops::AttentionOptions options;
  options.causal = spec.causal;
  options.window = spec.window;
  options.segments = spec.segments;
  options.scale = spec.scale;
  if (tape.training() && spec.dropout > 0) {
    options.dropout = spec.dropout;
    options.stream = tape.next_stream();
  }
  return options;
}

// Two products over the visible pairs, and in backward one for each of the gradients of
// probabilities, queries, keys and values; the scores that the kernel makes again do not count.
Arithmetic attention_work(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Attention& spec) {
  const VisiblePairs pairs{q.size(0),   q.size(1),     k.size(1),    spec.causal,
                           spec.window, spec.key_mask, spec.segments};
  return Arithmetic::products(count_visible_pairs(pairs) * spec.heads * (q.size(3) + v.size(3)));
}

struct QueryRows {
  Tensor q, out, lse;
};

// Sequences of several lengths with many new tokens each, one by one.
void attend_each(Tape& tape, const QueryRows& rows, const SeenTokens& seen,
                 const std::vector<int64_t>& lengths, ops::AttentionOptions options) {
  for (int64_t b = 0; b < rows.q.size(0); ++b) {
    const auto of = [b](const Tensor& x) { return x.slice(0, b, b + 1); };
    const int64_t end = lengths[static_cast<size_t>(b)] + rows.q.size(1);
    Tensor out = of(rows.out), lse = of(rows.lse);
    const auto own = [&](const Tensor& x) {
      return x && !seen.blocks ? of(x).slice(1, 0, end) : x;
    };
    if (seen.blocks) options.blocks = seen.blocks.of(b, end);
    ops::attention(tape.ctx(),
                   {.q = of(rows.q),
                    .k = own(seen.keys),
                    .v = own(seen.values),
                    .k_scales = own(seen.key_scales),
                    .v_scales = own(seen.value_scales)},
                   options, {.out = out, .lse = lse});
  }
}

Value attention_after(Tape& tape, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Attention& spec, AttentionState& state, int layer) {
  DS_CHECK(!tape.recording(), Code::kInternal, "decoding has no backward");
  const int64_t batch = q.size(0), length = q.size(1);
  DS_CHECK(static_cast<size_t>(batch) == state.lengths().size(), Code::kInternal, batch,
           " sequences for the attention state of ", state.lengths().size());
  if (spec.table.cos) {
    tape.reads(spec.table.cos);
    tape.reads(spec.table.sin);
  }
  Tensor rotated = q;
  ops::rotary_append(tape.ctx(), rotated, k, v, {spec.position_ids, spec.table.cos, spec.table.sin},
                     {}, state.append(layer, length));
  ops::AttentionOptions options = attention_options(tape, spec);
  const SeenTokens seen = state.view(layer, length);
  Value y =
      tape.make_value(tape.new_activation(q.dtype(), {batch, length, spec.heads * q.size(3)}));
  Tensor lse = tape.ctx().workspace(DType::kFloat32, {batch, spec.heads, length});
  Tensor out = y.data.view(q.shape());
  if (seen.past && length > ops::kMostQueriesBehindPast) {
    DS_CHECK(!spec.key_mask && !spec.segments, Code::kInternal,
             "sequences of several lengths have no key mask and no segments");
    attend_each(tape, {q, out, lse}, seen, state.lengths(), options);
    return y;
  }
  options.past = seen.past;
  options.blocks = seen.blocks;
  ops::attention(tape.ctx(),
                 {.q = q,
                  .k = seen.keys,
                  .v = seen.values,
                  .key_mask = spec.key_mask,
                  .k_scales = seen.key_scales,
                  .v_scales = seen.value_scales},
                 options, {.out = out, .lse = lse});
  return y;
}

}  // namespace

std::array<Value, 3> split_qkv(Tape& tape, const Value& packed, int64_t heads, QkvLayout layout) {
  const OperatorScope op(tape, "split_qkv");
  const std::array<Tensor, 3> data = qkv_views(packed.data, heads, layout);
  std::array<Value, 3> parts{Value{data[0], nullptr}, Value{data[1], nullptr},
                             Value{data[2], nullptr}};
  if (!tape.recording() || !packed.slot) return parts;
  // The packed gradient is made when the first part's is.
  const auto gradient = std::make_shared<Tensor>();
  const auto views = [gradient, dtype = packed.data.dtype(), shape = packed.data.shape(), heads,
                      layout](Tape& t) {
    if (!*gradient) *gradient = t.new_activation(dtype, shape);
    return qkv_views(*gradient, heads, layout);
  };
  std::array<std::shared_ptr<GradientSlot>, 3> slots;
  for (size_t i = 0; i < 3; ++i) {
    slots[i] = std::make_shared<GradientSlot>();
    slots[i]->set_place([views, i](Tape& t) { return views(t)[i]; });
    parts[i].slot = slots[i];
  }
  tape.record([views, gradient, slots, in = packed.slot](Tape& t) {
    if (!*slots[0] && !*slots[1] && !*slots[2]) return;
    const std::array<Tensor, 3> places = views(t);
    for (size_t i = 0; i < 3; ++i) {
      DS_CHECK(*slots[i] && slots[i]->gradient().raw() == places[i].raw(), Code::kInternal,
               "the gradient of a packed projection has missing parts");
    }
    in->add(t.ctx(), std::exchange(*gradient, Tensor()), true);
  });
  return parts;
}

Value rotary(Tape& tape, const Value& x, int64_t heads, const Tensor& position_ids,
             const RotaryTable& table, const RotaryPart& part) {
  const OperatorScope op(tape, "rotary");
  if (op) {  // two products and a sum for each rotated channel
    const int64_t rotated = 2 * table.cos.size(1) * heads * x.data.size(0) * x.data.size(1);
    op.work(Arithmetic::elementwise(3 * rotated), Arithmetic::elementwise(3 * rotated));
  }
  tape.reads(table.cos);
  tape.reads(table.sin);
  Value y{x.data, x.slot ? std::make_shared<GradientSlot>() : nullptr};
  if (y.slot) y.slot->set_place(x.slot->place());
  // What lies before the turning channels stays as it is.
  const auto turning = [heads, first = part.first](const Tensor& whole) {
    const Tensor all = as_heads(whole, heads);
    return first == 0 ? all : all.slice(3, first, all.size(3));
  };
  Tensor rotated = turning(y.data);
  ops::RotaryOptions forward;
  forward.interleaved = part.interleaved;
  ops::rotary(tape.ctx(), rotated, position_ids, table.cos, table.sin, forward, rotated);
  tape.record([in = x.slot, out = y.slot, position_ids, table, part, turning](Tape& t) {
    if (!out || !*out || !in) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    // Other channels are copied where there is another tensor, so all of them are there then.
    DS_CHECK(exclusive || part.first == 0, Code::kInternal,
             "a part of heads turned that something else reads, too");
    Tensor dx = exclusive ? dy : in->make(t, dy.dtype(), dy.shape());
    Tensor back = turning(dx);
    ops::RotaryOptions options;
    options.inverse = true;
    options.interleaved = part.interleaved;
    ops::rotary(t.ctx(), turning(dy), position_ids, table.cos, table.sin, options, back);
    in->add(t.ctx(), std::move(dx), true);
  });
  return y;
}

Value attention(Tape& tape, const Value& q, const Value& k, const Value& v, const Attention& spec,
                AttentionState* state, int layer) {
  DS_CHECK(state != nullptr || !spec.table.cos, Code::kInternal,
           "without an attention state queries and keys have been rotated before");
  const Tensor q4 = as_heads(q.data, spec.heads), k4 = as_heads(k.data, spec.kv_heads),
               v4 = as_heads(v.data, spec.kv_heads);
  const Arithmetic work = tape.profile() == nullptr || state != nullptr
                              ? Arithmetic()
                              : attention_work(q4, k4, v4, spec);
  const OperatorScope op(tape, "attention");
  if (op) op.work(work, work + work);
  if (state != nullptr) return attention_after(tape, q4, k4, v4, spec, *state, layer);
  const int64_t batch = q4.size(0), length = q4.size(1);
  const ops::AttentionOptions options = attention_options(tape, spec);
  Value y =
      tape.make_value(tape.new_activation(q4.dtype(), {batch, length, spec.heads * v4.size(3)}));
  Tensor lse = tape.new_activation(DType::kFloat32, {batch, spec.heads, length});
  const Shape result{batch, length, spec.heads, v4.size(3)};
  Tensor out = y.data.view(result);
  ops::attention(tape.ctx(), {.q = q4, .k = k4, .v = v4, .key_mask = spec.key_mask}, options,
                 {.out = out, .lse = lse});
  tape.record([q, k, v, y_data = y.data, y_slot = y.slot, lse, options, result, heads = spec.heads,
               kv_heads = spec.kv_heads, mask = spec.key_mask](Tape& t) {
    if (!*y_slot || !(q.slot && k.slot && v.slot)) return;
    bool exclusive = false;
    const Tensor dy = y_slot->take(exclusive);
    const auto gradient = [&t](const Value& x) {
      return x.slot->make(t, x.data.dtype(), x.data.shape());
    };
    Tensor dq = gradient(q), dk = gradient(k), dv = gradient(v);
    Tensor dq4 = as_heads(dq, heads), dk4 = as_heads(dk, kv_heads), dv4 = as_heads(dv, kv_heads);
    ops::attention_backward(t.ctx(),
                            {.q = as_heads(q.data, heads),
                             .k = as_heads(k.data, kv_heads),
                             .v = as_heads(v.data, kv_heads),
                             .key_mask = mask},
                            options, {.out = y_data.view(result), .lse = lse}, dy.view(result),
                            {.dq = dq4, .dk = dk4, .dv = dv4});
    q.slot->add(t.ctx(), std::move(dq), true);
    k.slot->add(t.ctx(), std::move(dk), true);
    v.slot->add(t.ctx(), std::move(dv), true);
  });
  return y;
}

}  // namespace ds::nn
