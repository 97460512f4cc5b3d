// Rotary positions of new tokens and their way to the cache, on CPUs: keys turn from where they are
// to their rows of the cache.
#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/rotary/rotary.h"

namespace ds::kernels {
namespace {

template <class T>
RotaryView<T> new_rows(const RotaryAppend<T>& call, RotaryView<T> cache) {
  if (cache.blocks) {
    cache.past = call.past;
  } else {
    cache.data += call.past * cache.token;
  }
  return cache;
}

template <class T>
void turn(const RotaryAppend<T>& call, int64_t heads, const RotaryView<const T>& x,
          const RotaryView<T>& y, ThreadPool& pool) {
  Rotary<T> part;
  part.batch = call.batch;
  part.tokens = call.tokens;
  part.heads = heads;
  part.head_dim = call.head_dim;
  part.rotary_dim = call.rotary_dim;
  part.interleaved = call.interleaved;
  part.x = x;
  part.y = y;
  part.positions = call.positions;
  part.rows = call.rows;
  part.cos = call.cos;
  part.sin = call.sin;
  rotary(part, pool);
}

template <class T>
void copy(const RotaryAppend<T>& call, const RotaryView<const T>& from, const RotaryView<T>& to,
          ThreadPool& pool) {
  constexpr int64_t kElements = 16384;
  // Heads that lie side by side on both sides go as one.
  const bool dense = from.head == call.head_dim && to.head == call.head_dim;
  const int64_t heads = dense ? 1 : call.kv_heads;
  const int64_t width = call.head_dim * (dense ? call.kv_heads : 1);
  pool.for_range(call.batch * call.tokens, std::max<int64_t>(1, kElements / (heads * width)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t token = begin; token < end; ++token) {
                     const int64_t b = token / call.tokens, t = token % call.tokens;
                     T* const row = to.at(b, t);
                     for (int64_t h = 0; h < heads; ++h) {
                       std::memcpy(row + h * to.head, from.at(b, t) + h * from.head,
                                   static_cast<size_t>(width) * sizeof(T));
                     }
                   }
                 });
}

template <class T>
RotaryView<T> sequence_of(RotaryView<T> view, int64_t b) {
  view.data += b * view.batch;
  view.blocks = view.blocks.from(b);
  return view;
}

// The tokens of one sequence.
template <class T>
RotaryAppend<T> sequence_of(const RotaryAppend<T>& call, int64_t b) {
  RotaryAppend<T> one = call;
  one.batch = 1;
  one.q = sequence_of(call.q, b);
  one.k = sequence_of(call.k, b);
  if (call.v.data != nullptr) one.v = sequence_of(call.v, b);
  one.keys = sequence_of(call.keys, b);
  one.values = sequence_of(call.values, b);
  if (call.positions != nullptr) one.positions += b * call.tokens;
  one.past = call.past_of_each[b];
  one.past_of_each = nullptr;
  return one;
}

}  // namespace

template <class T>
void rotary_append(const RotaryAppend<T>& call, ThreadPool& pool) {
  if (call.past_of_each != nullptr) {
    for (int64_t b = 0; b < call.batch; ++b) rotary_append(sequence_of(call, b), pool);
    return;
  }
  const RotaryView<T> keys = new_rows(call, call.keys);
  if (call.rotary_dim > 0) {
    turn<T>(call, call.heads, {call.q.data, call.q.batch, call.q.token, call.q.head}, call.q, pool);
    turn<T>(call, call.kv_heads, call.k, keys, pool);
  } else {
    copy<T>(call, call.k, keys, pool);
  }
  if (call.v.data != nullptr) copy<T>(call, call.v, new_rows(call, call.values), pool);
}
template void rotary_append(const RotaryAppend<float>&, ThreadPool&);
template void rotary_append(const RotaryAppend<bfloat16>&, ThreadPool&);
template void rotary_append(const RotaryAppend<float16>&, ThreadPool&);

}  // namespace ds::kernels
