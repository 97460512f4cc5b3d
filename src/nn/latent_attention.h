// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values of all heads are
// made from one latent per token, which is what generation keeps of it.
#pragma once

#include "nn/layers.h"

namespace ds::nn {

struct LatentAttention {
  // Queries: query(norm(latent_query(x))), or query(x) without latent_query.
  Projection latent_query;
  ParamId query_norm = kNoParam;
  Projection query;   // to heads of plain + turning channels
  Projection latent;  // to the latent, and `turning` channels of the keys, which all heads share
  ParamId latent_norm = kNoParam;
  ParamId expand = kNoParam;  // of the normalised latent to heads of plain + values channels
  int64_t heads = 1;
  int64_t plain = 0;    // channels of a head's queries and keys without a position
  int64_t turning = 0;  // and with one
  int64_t values = 0;   // channels of a head's values
  float epsilon = 1e-6f;
  bool interleaved = true;  // channels turn with their neighbours
};

// x [B, T, width]; the result [B, T, heads * values] is what the output projection reads. `spec`
// has scale, mask, segments, dropout, and always the table and the positions.
//
// With a `state` the keys of its `layer` are one head of [turning | latent] channels, whose last
// ones are the values (ArchitectureInfo::values_in_keys). On a CPU a few new tokens are compared
// with them as they are, with the matrix `expand` multiplied into queries and results; for more
// tokens than that, and on a GPU, keys and values of heads are made again. The two round
// differently.
Value latent_attention(Tape& tape, const Value& x, const LatentAttention& layer,
                       const Attention& spec, AttentionState* state, int index);

}  // namespace ds::nn
