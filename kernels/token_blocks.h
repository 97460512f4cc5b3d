// Tokens of a cache that lie in blocks: each sequence has a list of blocks, each of as many tokens.
#pragma once

#include <cstdint>

namespace ds::kernels {

struct TokenBlocks {
  // [batch] rows `stride` apart: the address of each block's first token, as strides of the tokens
  // count from there. Null: all tokens lie in one piece.
  const int64_t* table = nullptr;
  int64_t stride = 0;
  int64_t tokens = 0;  // of a block

  explicit operator bool() const { return table != nullptr; }
  // Token t of sequence b, with tokens `token_stride` elements apart inside a block.
  template <class T>
  T* at(int64_t b, int64_t t, int64_t token_stride) const {
    return reinterpret_cast<T*>(table[b * stride + t / tokens]) + t % tokens * token_stride;
  }
  // The sequences from b on.
  TokenBlocks from(int64_t b) const {
    return {table == nullptr ? nullptr : table + b * stride, stride, tokens};
  }
};

}  // namespace ds::kernels
