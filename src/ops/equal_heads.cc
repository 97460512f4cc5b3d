#include "ops/equal_heads.h"

#include <algorithm>

#include "tensor/transfer.h"

namespace ds::ops {
namespace {

// Between tensors [B, T, H, channels] of one shape with dense channels.
void copy_heads(const OpContext& ctx, const Tensor& from, const Tensor& to) {
  const int64_t item = dtype_size(from.dtype());
  const auto rows_of = [&](const Tensor& x, int64_t b, int64_t t) {
    return Rows{static_cast<std::byte*>(x.raw()) + (b * x.stride(0) + t * x.stride(1)) * item,
                x.stride(2) * item};
  };
  const int64_t batch = from.size(0), tokens = from.size(1), heads = from.size(2);
  // Tokens, and sequences, that follow each other at the distance of heads are copied together.
  const auto even = [&](int dim, int64_t inner) {
    return from.stride(dim) == inner * from.stride(2) && to.stride(dim) == inner * to.stride(2);
  };
  const bool all = even(1, heads) && even(0, heads * tokens);
  const int64_t sequences = all ? std::min<int64_t>(batch, 1) : batch;
  const int64_t steps = even(1, heads) ? std::min<int64_t>(tokens, 1) : tokens;
  const int64_t rows = batch * tokens * heads / std::max<int64_t>(1, sequences * steps);
  for (int64_t b = 0; b < sequences; ++b) {
    for (int64_t t = 0; t < steps; ++t) {
      copy_rows(*ctx.device, rows_of(to, b, t), rows_of(from, b, t), from.size(3) * item, rows);
    }
  }
}

Tensor with_channels(const OpContext& ctx, const Tensor& x, int64_t channels) {
  return ctx.workspace(x.dtype(), {x.size(0), x.size(1), x.size(2), channels});
}

// The tensor itself where it has as many channels, else a copy with zeros behind.
Tensor filled_up(const OpContext& ctx, const Tensor& x, int64_t channels) {
  if (x.size(3) == channels) return x;
  Tensor out = with_channels(ctx, x, channels);
  ctx.device->clear(out.raw(), out.bytes(), ctx.device->default_stream());
  copy_heads(ctx, x, out.slice(3, 0, x.size(3)));
  return out;
}

// Where a result goes that has as many channels, and what brings its first ones to its place.
class Result {
 public:
  Result(const OpContext& ctx, const Tensor& place, int64_t channels)
      : ctx_(ctx),
        place_(place),
        made_(place.size(3) == channels ? place : with_channels(ctx, place, channels)) {}
  const Tensor& operator*() const { return made_; }
  void finish() const {
    if (made_.raw() != place_.raw()) copy_heads(ctx_, made_.slice(3, 0, place_.size(3)), place_);
  }

 private:
  const OpContext& ctx_;
  const Tensor place_, made_;
};

int64_t most_channels(const AttentionInputs& in) { return std::max(in.q.size(3), in.v.size(3)); }

AttentionInputs filled_up(const OpContext& ctx, const AttentionInputs& in) {
  const int64_t channels = most_channels(in);
  return {.q = filled_up(ctx, in.q, channels),
          .k = filled_up(ctx, in.k, channels),
          .v = filled_up(ctx, in.v, channels),
          .key_mask = in.key_mask};
}

}  // namespace

void attention_of_equal_heads(const OpContext& ctx, const AttentionInputs& in,
                              const AttentionOptions& options, const AttentionOutputs& out) {
  const Result result(ctx, out.out, most_channels(in));
  attention(ctx, filled_up(ctx, in), options, {.out = *result, .lse = out.lse});
  result.finish();
}

void attention_of_equal_heads_backward(const OpContext& ctx, const AttentionInputs& in,
                                       const AttentionOptions& options, const AttentionOutputs& out,
                                       const Tensor& dout, const AttentionGradients& gradients) {
  const int64_t channels = most_channels(in);
  const Result dq(ctx, gradients.dq, channels), dk(ctx, gradients.dk, channels),
      dv(ctx, gradients.dv, channels);
  attention_backward(ctx, filled_up(ctx, in), options,
                     {.out = filled_up(ctx, out.out, channels), .lse = out.lse},
                     filled_up(ctx, dout, channels), {*dq, *dk, *dv});
  for (const Result* one : {&dq, &dk, &dv}) one->finish();
}

}  // namespace ds::ops
