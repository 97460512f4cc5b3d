// Rotary positions of new tokens and their way to the cache on a GPU, in one launch: a thread per
// pack, first those of the queries, then of the keys, then of the values.
#include <algorithm>

#include "kernels/rotary/turn.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

template <int N, bool kAligned, bool kInterleaved, class T>
__global__ void __launch_bounds__(kMapThreads) rotary_append_tokens(RotaryAppend<T> call) {
  constexpr int kRest = kAligned ? N : 1;
  const int64_t half = call.rotary_dim / 2;
  const auto rotated_packs = static_cast<int>((kInterleaved ? call.rotary_dim : half) / N);
  const auto rest = static_cast<int>((call.head_dim - call.rotary_dim) / kRest);
  const auto whole = static_cast<int>(call.head_dim / kRest);
  const auto heads = static_cast<int>(call.heads), kv_heads = static_cast<int>(call.kv_heads);
  const int key_packs = rotated_packs + rest;
  const int queries = heads * rotated_packs, keys = kv_heads * key_packs;
  const int values = call.v.data == nullptr ? 0 : kv_heads * whole;
  int item = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (item >= queries + keys + values) return;

  const int64_t token = blockIdx.x, b = token / call.tokens, t = token - b * call.tokens;
  const Angles angles(call.cos, call.sin, half, rotated_packs > 0 ? call.positions[token] : 0,
                      call.rows, false);
  if (item < queries) {
    const int head = item / rotated_packs, pack = item - head * rotated_packs;
    T* const q = call.q.data + b * call.q.batch + t * call.q.token + head * call.q.head;
    turn_pack<N, kAligned, kInterleaved>(q, q, pack, half, angles);
    return;
  }
  item -= queries;
  const int64_t row =
      t + (call.past_of_each == nullptr ? call.past : int64_t{call.past_of_each[b]});
  if (row < 0 || row >= call.capacity) return;
  const bool is_key = item < keys;
  if (!is_key) item -= keys;
  const int packs = is_key ? key_packs : whole, head = item / packs, pack = item - head * packs;
  const RotaryView<const T>& source = is_key ? call.k : call.v;
  const RotaryView<T>& cache = is_key ? call.keys : call.values;
  const T* const from = source.data + b * source.batch + t * source.token + head * source.head;
  T* const to = cache.data + b * cache.batch + row * cache.token + head * cache.head;
  if (is_key && pack < rotated_packs) {
    turn_pack<N, kAligned, kInterleaved>(from, to, pack, half, angles);
  } else {
    const int64_t at =
        is_key ? call.rotary_dim + int64_t{pack - rotated_packs} * kRest : int64_t{pack} * kRest;
    store_pack(to + at, load_pack<T, kRest>(from + at));
  }
}

template <int N, bool kAligned, bool kInterleaved, class T>
void launch_tokens(const RotaryAppend<T>& call, const GpuStream& on) {
  const int64_t rotated_packs = (kInterleaved ? call.rotary_dim : call.rotary_dim / 2) / N;
  constexpr int kRest = kAligned ? N : 1;
  const int64_t of_values = call.v.data == nullptr ? 0 : call.head_dim / kRest;
  const int64_t items =
      call.heads * rotated_packs +
      call.kv_heads * (rotated_packs + (call.head_dim - call.rotary_dim) / kRest + of_values);
  const int64_t warps = std::min<int64_t>((items + kWarp - 1) / kWarp, kMapThreads / kWarp);
  const auto threads = static_cast<int>(warps * kWarp);
  Grid grid{call.batch * call.tokens, threads};
  grid.blocks_y = (items + threads - 1) / threads;
  launch(on, "rotary_append", &rotary_append_tokens<N, kAligned, kInterleaved, T>, grid, call);
}

}  // namespace

template <class T>
void rotary_append(const RotaryAppend<T>& call, const GpuStream& on) {
  constexpr int kN = kPack<T>;
  const bool fits =
      channels_fit<T>(call.head_dim, call.rotary_dim, call.interleaved, call.cos, call.sin) &&
      view_fits<T>(kN, call.q) && view_fits<T>(kN, call.k) && view_fits<T>(kN, call.v) &&
      view_fits<T>(kN, call.keys) && view_fits<T>(kN, call.values);
  if (call.interleaved) {
    fits ? launch_tokens<kN, true, true>(call, on) : launch_tokens<2, false, true>(call, on);
  } else {
    fits ? launch_tokens<kN, true, false>(call, on) : launch_tokens<1, false, false>(call, on);
  }
}
template void rotary_append(const RotaryAppend<float>&, const GpuStream&);
template void rotary_append(const RotaryAppend<bfloat16>&, const GpuStream&);
template void rotary_append(const RotaryAppend<float16>&, const GpuStream&);

}  // namespace ds::kernels
