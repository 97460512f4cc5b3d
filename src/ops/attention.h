// Tiled softmax attention (online softmax: Milakov and Gimelshein, arXiv:1805.02867; tiling and
// recomputing backward: Dao et al., arXiv:2205.14135). Memory is linear in sequence length.
#pragma once

#include "base/philox.h"
#include "ops/context.h"
#include "ops/token_blocks.h"

namespace ds::ops {

// Whether a query among `queries` of its sequence and among `others` sums in the same order on the
// CPU: the same numbers have the same bits.
bool queries_alike(int64_t queries, int64_t others);

struct AttentionOptions {
  bool causal = true;  // query i sees keys j <= i + (keys - queries)
  int64_t window = 0;  // > 0: of those only the last `window`, j > i + (keys - queries) - window;
                       // without `causal` also j < i + (keys - queries) + window
  Tensor segments;     // int32 [B, T] with Tq = Tk = T: a query sees keys of its own segment
                       // only; or empty
  float scale = 1.0f;  // usually 1 / sqrt(head size)
  double dropout = 0;  // on the probabilities, after the softmax
  // Element index of sample b: ((first_head + h) * queries + i) * keys + j, so that who holds heads
  // from first_head on of a layer draws for them what the whole layer would.
  RandomStream stream;
  int64_t first_head = 0;
  // Decoding with a cache, or empty: int32 [B] in the memory of the device. As many keys of each
  // sequence lie before its first query, and k and v have room for more; read when the work runs.
  // For up to kMostQueriesBehindPast queries, without dropout, segments and a key mask; the bits
  // are those of each sequence alone with k and v cut to its length.
  Tensor past = {};
  // Decoding on a CPU with a cache in blocks, or empty: forward only. Then k and v are a block
  // each, and the room of the blocks is the number of keys. The bits are those of keys in one
  // piece.
  TokenBlocks blocks = {};
};
inline constexpr int64_t kMostQueriesBehindPast = 16;

// q [B, Tq, H, D], k [B, Tk, Hkv, D] and v [B, Tk, Hkv, V] with Hkv dividing H (query head h uses
// kv head h / (H / Hkv)); any strides except that the last dimension is dense: v may be channels of
// k, and heads may share memory. On a GPU heads of two sizes take copies with zeros behind the
// smaller ones. D and V are at most 256; of up to 4 queries on a
// CPU, without dropout and segments, at most 2048.
struct AttentionInputs {
  Tensor q, k, v;
  Tensor key_mask = {};  // uint8 [B, Tk], 1 = may be seen, or empty
  // On a CPU, forward, without dropout and segments, k and v may be int8 codes
  // (kernels/attention/token_codes.h) with these scales, fp32 [B, Tk, Hkv] in which the tokens of a
  // head lie side by side; in blocks they are of one. More than 4 queries see the codes' numbers
  // rounded to the type of q. Else empty.
  Tensor k_scales = {}, v_scales = {};
};
struct AttentionOutputs {
  Tensor out;       // [B, Tq, H, V] in the type of q
  Tensor lse = {};  // fp32 [B, H, Tq], the log of the sum of exponentials of the scaled scores
};
// A query with no visible key gives 0 and lse = -inf. Without backward `lse` may be left out.
void attention(const OpContext& ctx, const AttentionInputs& in, const AttentionOptions& options,
               const AttentionOutputs& out);

// Strided like q, k, v; overwritten.
struct AttentionGradients {
  Tensor dq, dk, dv;
};
// `out` is what attention() gave.
void attention_backward(const OpContext& ctx, const AttentionInputs& in,
                        const AttentionOptions& options, const AttentionOutputs& out,
                        const Tensor& dout, const AttentionGradients& gradients);

}  // namespace ds::ops
