#include "nn/latent_attention.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "nn/profile.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/latent.h"
#include "ops/linear.h"
#include "tensor/transfer.h"

namespace ds::nn {
namespace {

// Up to so many new tokens of a sequence are compared with latents as they are.
constexpr int64_t kMostAbsorbed = 4;

// A part of the channels of [..., channels], dense rows: copied from `whole` or to it.
void copy_channels(const OpContext& ctx, const Tensor& whole, int64_t first, const Tensor& part,
                   bool to_part) {
  if (part.elements() == 0) return;
  const int64_t item = dtype_size(whole.dtype()), width = part.size(-1) * item;
  const Rows all{static_cast<std::byte*>(whole.raw()) + first * item, whole.size(-1) * item};
  const Rows some{part.raw(), width};
  copy_rows(*ctx.device, to_part ? some : all, to_part ? all : some, width,
            part.elements() / part.size(-1));
}

Shape with_channels(const Tensor& x, int64_t channels) { return {x.size(0), x.size(1), channels}; }

// The first `count` channels of x [B, T, channels], and the others.
std::array<Value, 2> split_channels(Tape& tape, const Value& x, int64_t count) {
  const OperatorScope op(tape, "split_channels");
  const DType type = x.data.dtype();
  std::array<Value, 2> parts;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t size = i == 0 ? count : x.data.size(2) - count;
    parts[i] = tape.make_value(tape.new_activation(type, with_channels(x.data, size)));
    copy_channels(tape.ctx(), x.data, i == 0 ? 0 : count, parts[i].data, true);
  }
  tape.record([in = x.slot, shape = x.data.shape(), type, count, first = parts[0].slot,
               second = parts[1].slot](Tape& t) {
    if (!in || !*first || !*second) return;
    Tensor dx = t.new_activation(type, shape);
    copy_channels(t.ctx(), dx, 0, first->gradient(), false);
    copy_channels(t.ctx(), dx, count, second->gradient(), false);
    in->add(t.ctx(), std::move(dx), true);
  });
  return parts;
}

struct KeysAndValues {
  Value keys, values;
};

// Keys [B, T, H, plain + turning] and values, which stay where they are in `expanded`
// [B, T, H * (plain + values)].
KeysAndValues keys_and_values(Tape& tape, const Value& expanded, const Value& shared,
                              const LatentAttention& c) {
  const OperatorScope op(tape, "latent_keys");
  const DType type = expanded.data.dtype();
  const int64_t batch = expanded.data.size(0), length = expanded.data.size(1);
  const Shape by_head{batch, length, c.heads, c.plain + c.values};
  const auto values_of = [plain = c.plain, end = c.plain + c.values](const Tensor& heads) {
    return heads.slice(3, plain, end);
  };
  const Tensor heads = expanded.data.view(by_head);
  KeysAndValues out;
  out.keys =
      tape.make_value(tape.new_activation(type, {batch, length, c.heads, c.plain + c.turning}));
  ops::latent_keys(tape.ctx(), heads, shared.data, out.keys.data);
  out.values = {values_of(heads), nullptr};
  if (!tape.recording()) return out;
  // The gradient of what both are parts of is made when that of the values is.
  const auto gradient = std::make_shared<Tensor>();
  const auto whole = [gradient, type, by_head](Tape& t) {
    if (!*gradient) *gradient = t.new_activation(type, by_head);
    return *gradient;
  };
  out.values.slot = std::make_shared<GradientSlot>();
  out.values.slot->set_place([whole, values_of](Tape& t) { return values_of(whole(t)); });
  tape.record([whole, values_of, gradient, in = expanded.slot, shape = expanded.data.shape(),
               keys = out.keys.slot, values = out.values.slot, shared](Tape& t) {
    if (!*keys || !*values) return;
    Tensor dexpanded = whole(t);
    DS_CHECK(values->gradient().raw() == values_of(dexpanded).raw(), Code::kInternal,
             "the gradient of values is not where it belongs");
    Tensor dshared = t.new_activation(shared.data.dtype(), shared.data.shape());
    ops::latent_keys_backward(t.ctx(), keys->gradient(), dexpanded, dshared);
    in->add(t.ctx(), std::exchange(*gradient, Tensor()).view(shape), true);
    shared.slot->add(t.ctx(), std::move(dshared), true);
  });
  return out;
}

// What new tokens add to an attention state, and their queries.
struct NewTokens {
  Value query;   // [B, T, H, plain + turning], turned
  Value latent;  // [B, T, rank], normalised
  Value shared;  // [B, T, turning], turned
};

NewTokens project(Tape& tape, const Value& x, const LatentAttention& c, const Attention& spec) {
  const RotaryPart part{0, c.interleaved};
  NewTokens out;
  Value q = x;
  if (c.latent_query.weight != kNoParam) {
    q = linear(tape, x, c.latent_query.weight, c.latent_query.bias);
    q = rms_norm(tape, q, {}, c.query_norm, c.epsilon).y;
  }
  q = linear(tape, q, c.query.weight, c.query.bias);
  out.query = rotary(tape, q, c.heads, spec.position_ids, spec.table, {c.plain, c.interleaved});
  const Value packed = linear(tape, x, c.latent.weight, c.latent.bias);
  auto [latent, shared] = split_channels(tape, packed, packed.data.size(2) - c.turning);
  out.latent = rms_norm(tape, latent, {}, c.latent_norm, c.epsilon).y;
  out.shared = rotary(tape, shared, 1, spec.position_ids, spec.table, part);
  return out;
}

Value attend(Tape& tape, const Value& query, const Value& latent, const Value& shared,
             const LatentAttention& c, Attention spec) {
  const Value expanded = linear(tape, latent, c.expand, kNoParam);
  const auto [keys, values] = keys_and_values(tape, expanded, shared, c);
  spec.heads = spec.kv_heads = c.heads;
  spec.table = {};
  return attention(tape, query, keys, values, spec);
}

// [B, T, 1, turning + rank]: how a state holds tokens.
Tensor state_rows(const Tape& tape, const NewTokens& tokens) {
  const Tensor& latent = tokens.latent.data;
  const int64_t turning = tokens.shared.data.size(2), rank = latent.size(2);
  const Tensor rows =
      tape.new_activation(latent.dtype(), {latent.size(0), latent.size(1), 1, turning + rank});
  copy_channels(tape.ctx(), rows, 0, tokens.shared.data, false);
  copy_channels(tape.ctx(), rows, turning, latent, false);
  return rows;
}

// Without adapters the weight itself.
Tensor with_adapter(Tape& tape, ParamId id, const Tensor& weight) {
  const Adapter* const adapter = tape.weights().parameters().adapter(id);
  if (adapter == nullptr) return weight;
  const OpContext& ctx = tape.ctx();
  const ParameterGuard a(tape.weights(), adapter->a), b(tape.weights(), adapter->b);
  Tensor sum = ctx.workspace(weight.dtype(), weight.shape());
  copy_tensor(weight, sum);
  Tensor scaled = ctx.workspace((*b).dtype(), (*b).shape());
  ops::scale(ctx, *b, adapter->scale, scaled);
  ops::linear_grad_input(ctx, scaled, *a, sum, true);
  return sum;
}

// One head of keys or values as several that share its memory, so that there are as many parts of
// the work for threads.
Tensor repeated_head(const Tensor& x, int64_t heads) {
  const int64_t begin =
      static_cast<const std::byte*>(x.raw()) - static_cast<const std::byte*>(x.storage()->data());
  const std::array<int64_t, 4> strides{x.stride(0), x.stride(1), 0, 1};
  return Tensor(x.storage(), begin, x.dtype(), Shape{x.size(0), x.size(1), heads, x.size(3)},
                strides);
}

// Heads that are worked on together; it divides their number. The same for any number of threads.
int64_t head_groups(int64_t heads) {
  constexpr int64_t kMost = 16;
  int64_t groups = std::min(heads, kMost);
  while (heads % groups != 0) --groups;
  return groups;
}

// A few tokens against latents as they are: q . (W c) is (q W) . c, and sums of W c are W times
// sums of c.
Value attend_absorbed(Tape& tape, const NewTokens& tokens, const LatentAttention& c,
                      const Attention& spec, AttentionState& state, int index) {
  const OpContext& ctx = tape.ctx();
  const DType type = tokens.latent.data.dtype();
  const int64_t batch = tokens.latent.data.size(0), length = tokens.latent.data.size(1);
  const int64_t rank = tokens.latent.data.size(2), all = batch * length;
  const ParameterGuard guard(tape.weights(), c.expand);
  const Tensor weight =
      with_adapter(tape, c.expand, *guard).view({c.heads, c.plain + c.values, rank});
  const Tensor query = tokens.query.data.view({all, c.heads, c.plain + c.turning});
  Tensor wide = ctx.workspace(type, {all, c.heads, c.turning + rank});
  const int64_t item = dtype_size(type);
  copy_rows(*ctx.device, {wide.raw(), wide.size(2) * item},
            {static_cast<std::byte*>(query.raw()) + c.plain * item, query.size(2) * item},
            c.turning * item, all * c.heads);
  Tensor absorbed = wide.slice(2, c.turning, c.turning + rank);
  ops::head_linear(ctx, query.slice(2, 0, c.plain), weight.slice(1, 0, c.plain), false, absorbed);
  const SeenTokens seen = state.view(index, length);
  const int64_t groups = head_groups(c.heads);
  ops::AttentionOptions options;
  options.causal = spec.causal;
  options.scale = spec.scale;
  options.past = seen.past;
  options.blocks = seen.blocks;
  Tensor sums = ctx.workspace(type, {batch, length, c.heads, rank});
  ops::attention(ctx,
                 {.q = wide.view({batch, length, c.heads, c.turning + rank}),
                  .k = repeated_head(seen.keys, groups),
                  .v = repeated_head(seen.values, groups),
                  .key_mask = spec.key_mask},
                 options, {.out = sums});
  Value y = tape.make_value(tape.new_activation(type, {batch, length, c.heads * c.values}));
  Tensor heads = y.data.view({all, c.heads, c.values});
  ops::head_linear(ctx, sums.view({all, c.heads, rank}),
                   weight.slice(1, c.plain, c.plain + c.values), true, heads);
  return y;
}

// Many tokens behind others, sequence by sequence: keys and values of all are made again.
Value attend_expanded(Tape& tape, const NewTokens& tokens, const LatentAttention& c,
                      const Attention& spec, const AttentionState& state, int index) {
  DS_CHECK(!spec.key_mask && !spec.segments, Code::kInternal,
           "tokens behind others have no key mask and no segments");
  const Tensor& latent = tokens.latent.data;
  const int64_t batch = latent.size(0), length = latent.size(1), rank = latent.size(2);
  const SeenTokens seen = state.view(index, length);
  Value y =
      tape.make_value(tape.new_activation(latent.dtype(), {batch, length, c.heads * c.values}));
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t end = state.lengths()[static_cast<size_t>(b)] + length;
    Tensor rows = tape.new_activation(latent.dtype(), {end, c.turning + rank});
    ops::read_tokens(tape.ctx(), seen.keys, seen.blocks, b, rows);
    const Value kept{rows.view({1, end, c.turning + rank}), nullptr};
    const auto [shared, own] = split_channels(tape, kept, c.turning);
    const Value query{tokens.query.data.slice(0, b, b + 1), nullptr};
    const Value part = attend(tape, query, own, shared, c, spec);
    copy_tensor(part.data, y.data.slice(0, b, b + 1));
  }
  return y;
}

Value attend_after(Tape& tape, const NewTokens& tokens, const LatentAttention& c,
                   const Attention& spec, AttentionState& state, int index) {
  DS_CHECK(!tape.recording(), Code::kInternal, "decoding has no backward");
  const int64_t length = tokens.latent.data.size(1);
  const std::vector<int64_t>& lengths = state.lengths();
  DS_CHECK(tokens.latent.data.size(0) == std::ssize(lengths), Code::kInternal,
           tokens.latent.data.size(0), " sequences for the attention state of ", lengths.size());
  Tensor rows = state_rows(tape, tokens);
  ops::rotary_append(tape.ctx(), rows, rows, Tensor(), {}, {}, state.append(index, length));
  // A GPU's kernels have no heads as long as latents.
  const bool absorbs = tape.ctx().device->kind() == DeviceKind::kCpu && length <= kMostAbsorbed;
  if (absorbs) return attend_absorbed(tape, tokens, c, spec, state, index);
  const bool first = std::all_of(lengths.begin(), lengths.end(), [](int64_t n) { return n == 0; });
  if (first) return attend(tape, tokens.query, tokens.latent, tokens.shared, c, spec);
  return attend_expanded(tape, tokens, c, spec, state, index);
}

}  // namespace

Value latent_attention(Tape& tape, const Value& x, const LatentAttention& layer,
                       const Attention& spec, AttentionState* state, int index) {
  DS_CHECK(spec.window == 0, Code::kInternal, "latent attention has no window");
  const NewTokens tokens = project(tape, x, layer, spec);
  if (state != nullptr) return attend_after(tape, tokens, layer, spec, *state, index);
  return attend(tape, tokens.query, tokens.latent, tokens.shared, layer, spec);
}

}  // namespace ds::nn
