// Rotary position embedding: pairs of channels turn by angles whose cosines and sines are tables.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/token_blocks.h"

namespace ds::kernels {

// Heads of a strided tensor [batch, tokens, heads, head size] with dense heads; or of a cache in
// blocks, whose tokens have these strides.
template <class T>
struct RotaryView {
  T* data = nullptr;
  int64_t batch = 0, token = 0, head = 0;  // strides
  TokenBlocks blocks = {};                 // on a CPU
  int64_t past = 0;                        // tokens in the blocks before token 0

  T* at(int64_t b, int64_t t) const {
    return blocks ? blocks.at<T>(b, past + t, token) : data + b * batch + t * token;
  }
};

// (a, b) -> (a c - b s, b c + a s) for every pair of the first `rotary_dim` channels, c and s from
// row positions[b, t] of the tables; `inverse` takes -s. The other channels are copied.
template <class T>
struct Rotary {
  int64_t batch = 0, tokens = 0, heads = 0, head_dim = 0;
  int64_t rotary_dim = 0;    // even, at most head_dim
  bool interleaved = false;  // pairs (2i, 2i + 1), else (i, i + rotary_dim / 2)
  bool inverse = false;
  RotaryView<const T> x;
  RotaryView<T> y;                     // may be x, with the same strides
  const int32_t* positions = nullptr;  // [batch, tokens], rows of the tables
  int64_t rows = 0;                    // of the tables; a GPU makes NaN of positions outside
  const float* cos = nullptr;          // rows of rotary_dim / 2
  const float* sin = nullptr;
};
template <class T>
void rotary(const Rotary<T>& call, ThreadPool& pool);
template <class T>
void rotary(const Rotary<T>& call, const GpuStream& on);

// What decoding does with the queries, keys and values of new tokens, in one pass: queries turn in
// place, keys turn on their way to the cache, values go there as they are. The bits are those of
// rotary() and copies. With `rotary_dim` 0 nothing turns: then there are no positions and no
// tables.
template <class T>
struct RotaryAppend {
  int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t rotary_dim = 0;
  bool interleaved = false;
  RotaryView<T> q;
  RotaryView<const T> k, v;    // without v (null): values are channels of the keys
  RotaryView<T> keys, values;  // of the cache: `capacity` tokens, `past` of which are there
  int64_t capacity = 0;
  int64_t past = 0;
  // [batch] in the memory of the device, or null: read there instead of `past`. A GPU does not
  // write tokens beyond the capacity.
  const int32_t* past_of_each = nullptr;
  const int32_t* positions = nullptr;  // as in Rotary, and so are the tables
  int64_t rows = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
};
template <class T>
void rotary_append(const RotaryAppend<T>& call, ThreadPool& pool);
template <class T>
void rotary_append(const RotaryAppend<T>& call, const GpuStream& on);

namespace reference {
// One head.
struct RotaryHead {
  int64_t head_dim = 0, rotary_dim = 0;
  bool interleaved = false;
  bool inverse = false;
  const double* x = nullptr;
  const double* cos = nullptr;  // rotary_dim / 2
  const double* sin = nullptr;
  double* y = nullptr;
};
void rotary(const RotaryHead& head);
}  // namespace reference

}  // namespace ds::kernels
