// Rotary position embedding (Su et al., arXiv:2104.09864) from tables of cosines and sines, so that
// every way of scaling frequencies is the caller's.
#pragma once

#include "ops/context.h"
#include "ops/token_blocks.h"

namespace ds::ops {

struct RotaryOptions {
  bool interleaved = false;  // pairs are neighbours (2i, 2i + 1), else halves (i, i + R / 2)
  bool inverse = false;      // the transposed map: what backward needs
};

// x and y [B, T, H, D], any strides with a dense last dimension; y may be x. cos and sin: fp32
// [P, R / 2] with R <= D even; the first R channels of every head turn by the row that
// position_ids (int32 [B, T], in [0, P)) names, the rest are copied.
void rotary(const OpContext& ctx, const Tensor& x, const Tensor& position_ids, const Tensor& cos,
            const Tensor& sin, const RotaryOptions& options, Tensor& y);

// Where the keys and values of new tokens go: behind `past` tokens of [B, capacity, Hkv, D], any
// strides with a dense last dimension; or of a cache in blocks, of which `keys` and `values` are
// one each.
struct CacheRows {
  Tensor keys, values;
  int64_t past = 0;
  // int32 [B] in the memory of the device, or empty: read for each sequence when the work runs,
  // instead of `past`. Then a GPU leaves out tokens beyond the capacity.
  Tensor past_memory = {};
  TokenBlocks blocks = {};  // for a CPU
  // For a CPU, where keys and values are int8 codes (kernels/attention/token_codes.h): fp32
  // [B, capacity, Hkv], or of a block; tokens of a head lie side by side. Else empty.
  Tensor key_scales = {}, value_scales = {};

  bool coded() const { return static_cast<bool>(key_scales); }
  int64_t capacity() const { return blocks ? blocks.room : keys.size(1); }
};
// Positions of new tokens; without tables nothing turns.
struct RotaryAngles {
  Tensor position_ids, cos, sin;
};
// What decoding does with new queries q [B, T, H, D], keys and values [B, T, Hkv, D]: q turns in
// place, keys go rotated to the cache, values as they are. The bits are those of rotary() and
// copies; on a GPU it is one launch. On a CPU v may be empty: values are channels of the keys.
// Codes are those of the rotated keys and of the values, rounded to nearest.
void rotary_append(const OpContext& ctx, Tensor& q, const Tensor& k, const Tensor& v,
                   const RotaryAngles& angles, const RotaryOptions& options, const CacheRows& to);

}  // namespace ds::ops
