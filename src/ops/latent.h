// What multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) does besides attention, on the
// CPU: keys of heads from a latent and from channels that all heads share, and products of each
// head with a matrix of its own.
#pragma once

#include "ops/context.h"
#include "ops/token_blocks.h"

namespace ds::ops {

// keys [B, T, H, plain + turning]: of expanded [B, T, H, more] the first `plain` channels of each
// head, and behind them shared [B, T, turning], whose rows may be parts of longer ones.
void latent_keys(const OpContext& ctx, const Tensor& expanded, const Tensor& shared, Tensor& keys);
// The first `plain` channels of each head of dexpanded are written, the others left alone; dshared,
// dense, is the sum over heads.
void latent_keys_backward(const OpContext& ctx, const Tensor& dkeys, Tensor& dexpanded,
                          Tensor& dshared);

// y[r, h, :] = x[r, h, :] w[h], or with `transposed` x[r, h, :] w[h]^T: x [R, H, K] and y [R, H, N]
// with rows of equal distance and a dense last dimension, w [H, K, N], or [H, N, K]; all of one
// type.
void head_linear(const OpContext& ctx, const Tensor& x, const Tensor& w, bool transposed,
                 Tensor& y);

// The first tokens of sequence b of a cache of keys [B, room, 1, D], or of one in blocks, of which
// `keys` is one, as rows [tokens, D].
void read_tokens(const OpContext& ctx, const Tensor& keys, const TokenBlocks& blocks, int64_t b,
                 Tensor& rows);

}  // namespace ds::ops
