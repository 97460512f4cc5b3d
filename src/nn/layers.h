// Layers as functions over the tape: each runs its operator, and records its backward.
#pragma once

#include "nn/kv_cache.h"
#include "nn/tape.h"
#include "ops/activation.h"

namespace ds::nn {

// y[..., H] = table[ids] (+ positions[position_ids]). ids int32 [...].
Value embedding(Tape& tape, const Tensor& ids, ParamId table, const Tensor& position_ids,
                ParamId positions);

struct NormOutput {
  Value y;    // normalised
  Value sum;  // x + residual, the new residual stream
};
// `residual` may be empty: then sum is x.
NormOutput layer_norm(Tape& tape, const Value& x, const Value& residual, ParamId gamma,
                      ParamId beta, float eps);

// y = x w^T + b; `bias` may be kNoParam.
Value linear(Tape& tape, const Value& x, ParamId weight, ParamId bias);

Value bias_gelu(Tape& tape, const Value& x, ParamId bias, ops::Gelu kind);

// Identity outside training or for p = 0.
Value dropout(Tape& tape, const Value& x, double p);

struct SelfAttention {
  int64_t heads = 1;
  float scale = 1;
  double dropout = 0;
  bool causal = true;
  Tensor key_mask;  // uint8 [B, T] or empty
};
// qkv [B, T, 3 * H * D], thirds q, k, v. Result [B, T, H * D].
Value self_attention(Tape& tape, const Value& qkv, const SelfAttention& spec);

// The same for decoding: appends the keys and values of the new tokens to `cache` (the caller
// advances it once all layers have run) and attends to all tokens in it. Not recorded.
Value cached_attention(Tape& tape, const Value& qkv, const SelfAttention& spec, KvCache& cache,
                       int layer);

// Mean over the counted labels, fp32 []; `counted` receives their number. The logits' memory is
// overwritten by their gradient in backward.
Value cross_entropy(Tape& tape, const Value& logits, const Tensor& labels, int64_t valid,
                    int64_t& counted);

}  // namespace ds::nn
