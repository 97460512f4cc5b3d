// Layers as functions over the tape: each runs its operator, and records its backward.
#pragma once

#include <array>

#include "nn/attention_state.h"
#include "nn/tape.h"
#include "ops/activation.h"

namespace ds::nn {

// y[..., H] = table[ids] (+ positions[position_ids]). ids int32 [...]. The row `padding` of the
// table (-1: none) gets no gradient from here, as in PyTorch's Embedding with a padding_idx.
Value embedding(Tape& tape, const Tensor& ids, ParamId table, const Tensor& position_ids,
                ParamId positions, int64_t padding = -1);

struct NormOutput {
  Value y;    // normalised
  Value sum;  // x + residual, the new residual stream
};
// `residual` may be empty: then sum is x.
NormOutput layer_norm(Tape& tape, const Value& x, const Value& residual, ParamId gamma,
                      ParamId beta, float eps);
NormOutput rms_norm(Tape& tape, const Value& x, const Value& residual, ParamId gamma, float eps);

// y = x w^T + b, and the weight's adapter when it carries one; `bias` may be kNoParam.
Value linear(Tape& tape, const Value& x, ParamId weight, ParamId bias);
// The same for readers that know how long rows of y are: on a GPU they may be padded to a multiple
// of kPaddedTo numbers, because products and losses of rows that are not aligned are slow. What the
// padding holds is undefined, and that of the gradient is not read.
inline constexpr int64_t kPaddedTo = 64;
Value linear_padded(Tape& tape, const Value& x, ParamId weight, ParamId bias);
struct Projection {
  ParamId weight = kNoParam;
  ParamId bias = kNoParam;
};
// f of that, for the forms of GELU: the sums become both before they leave the cache.
Value linear_gelu(Tape& tape, const Value& x, const Projection& p, ops::Gelu kind);
// down(gelu(up(x))). Backward makes the gradient of GELU's argument beside the product for that of
// its result, which is not kept.
Value linear_gelu_linear(Tape& tape, const Value& x, const Projection& up, const Projection& down,
                         ops::Gelu kind);

// f(x).
Value activation(Tape& tape, const Value& x, ops::Activation kind);
// f(gate) * up. The memory of gate and up is overwritten by their gradients in backward.
Value gated_activation(Tape& tape, const Value& gate, const Value& up, ops::Activation kind);
// A linear layer of that.
Value gated_linear(Tape& tape, const Value& gate, const Value& up, ops::Activation kind,
                   const Projection& down);

// Identity outside training or for p = 0.
Value dropout(Tape& tape, const Value& x, double p);

Value add(Tape& tape, const Value& a, const Value& b);

// x as a tensor of another shape with the same elements in the same memory.
Value reshaped(Tape& tape, const Value& x, const Shape& shape);

// x[:, position, :] of [B, T, W] as [B, W].
Value select_position(Tape& tape, const Value& x, int64_t position);

// How a packed projection holds queries, keys and values.
enum class QkvLayout {
  kThirds,   // [3, H, D]: GPT-2
  kPerHead,  // [H, 3, D]: GPT-NeoX
};
// q, k and v [B, T, H, D] as views of packed [B, T, 3 * H * D]; their gradients are written into
// the packed one's.
std::array<Value, 3> split_qkv(Tape& tape, const Value& packed, int64_t heads, QkvLayout layout);

// Cosines and sines, fp32 [P, R / 2]; empty where a model does not turn.
struct RotaryTable {
  Tensor cos;
  Tensor sin;
};
// Which channels of a head turn, and how they are paired.
struct RotaryPart {
  int64_t first = 0;         // R channels from here on
  bool interleaved = false;  // pairs are neighbours, else halves
};
// Turns channels of every head by its position's angles, in place: x [B, T, H * D] or [B, T, H, D]
// is the fresh output of a linear layer, or a part of it.
Value rotary(Tape& tape, const Value& x, int64_t heads, const Tensor& position_ids,
             const RotaryTable& table, const RotaryPart& part = {});

struct Attention {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  float scale = 1;
  double dropout = 0;
  bool causal = true;
  int64_t window = 0;  // > 0: a query sees the last so many keys only
  Tensor key_mask;     // uint8 [B, T] or empty
  Tensor segments;     // int32 [B, T] or empty: tokens see their own segment only
  // With a state: how q and k are still to turn, which costs nothing while they are appended to it.
  // Without one rotary() turns them before.
  RotaryTable table = {};
  Tensor position_ids = {};  // int32 [B, T]
};
// q [B, T, H * D] or [B, T, H, D], k and v likewise with kv_heads; heads of v may have another
// size, and so has the result then: [B, T, H * D]. With a `state` (decoding, not recorded) the new
// keys and values are appended to its `layer`, which the caller advances once all layers have run,
// and the queries of each sequence see all of its own.
Value attention(Tape& tape, const Value& q, const Value& k, const Value& v, const Attention& spec,
                AttentionState* state = nullptr, int layer = 0);

}  // namespace ds::nn
