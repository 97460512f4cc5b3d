// What attention has seen before the tokens of a pass: keys and values of every layer, and how many
// of each sequence. Where they lie is the implementation's business (infer/kv_cache.h): in one
// piece or in blocks.
#pragma once

#include <vector>

#include "ops/rotary.h"

namespace ds::nn {

// What the queries of a pass read in one layer: tokens seen before, then those of the pass.
struct SeenTokens {
  Tensor keys, values;           // [B, room, H, D]; in blocks: one of each
  ops::TokenBlocks blocks = {};  // empty: in one piece
  // int32 [B] in the memory of the device: how many tokens of each sequence lie before those of the
  // pass. Empty where all sequences have as many, which fill the room with those of the pass.
  Tensor past = {};
  // Of keys and values in 8-bit codes: fp32 [B, room, H], in blocks one of each; else empty.
  Tensor key_scales = {}, value_scales = {};
};

class AttentionState {
 public:
  virtual ~AttentionState() = default;

  // Where the keys and values of `tokens` new tokens per sequence go. Throws where there is no
  // room.
  virtual ops::CacheRows append(int layer, int64_t tokens) = 0;
  // What attention reads once they are there.
  virtual SeenTokens view(int layer, int64_t tokens) const = 0;
  // Tokens of each sequence before the pass, as far as the host knows: work that is recorded reads
  // them from SeenTokens::past.
  virtual const std::vector<int64_t>& lengths() const = 0;
  // All layers have the new tokens: they are seen from now on.
  virtual void advance(int64_t tokens) = 0;
};

}  // namespace ds::nn
