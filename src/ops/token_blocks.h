// Keys and values of a cache in blocks: what operators get instead of tensors in one piece.
#pragma once

#include "kernels/token_blocks.h"
#include "tensor/tensor.h"

namespace ds::ops {

struct Op;

// Beside it the operator gets one block of keys and one of values, [1, tokens of a block, Hkv, D]
// with a dense last dimension, whose shape, type and strides all blocks have.
struct TokenBlocks {
  // int64 [B, blocks] in the memory of the device: where the rows of each block begin. Token t of
  // sequence b is row t % tokens of block t / tokens. Empty: the cache is one piece.
  Tensor keys, values;
  int64_t room = 0;  // tokens of a sequence that may be read or written
  // Of codes, as above: where the scales of each block begin.
  Tensor key_scales = {}, value_scales = {};

  explicit operator bool() const { return static_cast<bool>(keys); }
  // Of one sequence, with room for so many.
  TokenBlocks of(int64_t b, int64_t tokens) const {
    const auto row = [b](const Tensor& table) { return table ? table.slice(0, b, b + 1) : table; };
    return {row(keys), row(values), tokens, row(key_scales), row(value_scales)};
  }
};

// A table as kernels read it.
kernels::TokenBlocks table_of(const Tensor& blocks, int64_t tokens);
// Throws unless the tables belong to `batch` sequences and cover the room.
void check_blocks(const Op& op, const TokenBlocks& blocks, int64_t batch, int64_t tokens);
// Throws unless the tables of scales are of the shape of the others.
void check_scale_blocks(const Op& op, const TokenBlocks& blocks);
// Throws unless the first `count` tokens of a sequence have blocks.
void check_tokens(const Op& op, const TokenBlocks& blocks, int64_t b, int64_t count,
                  int64_t tokens);

}  // namespace ds::ops
