// Rotary position embedding on a GPU: a block per token, a thread per pack of pairs.
#include <algorithm>

#include "kernels/cuda/map.cuh"
#include "kernels/rotary/rotary.h"

namespace ds::kernels {
namespace {

using namespace cuda;

// (a, b) turned; s has the sign of the direction.
__device__ __forceinline__ void turn(float& a, float& b, float c, float s) {
  const float turned = fmaf(-b, s, a * c);
  b = fmaf(a, s, b * c);
  a = turned;
}

// Packs where the alignment allows them, else element by element.
template <bool kAligned, int N, class T>
__device__ __forceinline__ void load_channels(const T* from, float* to) {
  if constexpr (kAligned) {
    widen_pack(load_pack<T, N>(from), to);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = widen(from[i]);
  }
}
template <bool kAligned, int N, class T>
__device__ __forceinline__ void store_channels(T* to, const float* from) {
  if constexpr (kAligned) {
    store_pack(to, narrow_pack<T, N>(from));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = narrow<T>(from[i]);
  }
}

// N channels that lie together, and with pairs of halves the N that belong to them. A position
// outside the tables makes NaN of what it should turn.
template <int N, bool kAligned, bool kInterleaved, class T>
__global__ void __launch_bounds__(kMapThreads) rotary_tokens(Rotary<T> call) {
  const int64_t token = blockIdx.x, b = token / call.tokens, t = token - b * call.tokens;
  const T* const x = call.x.data + b * call.x.batch + t * call.x.token;
  T* const y = call.y.data + b * call.y.batch + t * call.y.token;
  const int64_t half = call.turned / 2, position = call.positions[token];
  const bool known = position >= 0 && position < call.rows;
  const float direction = call.inverse ? -1.0f : 1.0f;
  const float* const cos = call.cos + (known ? position * half : 0);
  const float* const sin = call.sin + (known ? position * half : 0);
  const float broken = known ? 0.0f : __uint_as_float(0x7FC00000u);
  const auto turned_packs = static_cast<int>((kInterleaved ? call.turned : half) / N);
  // In place, channels that do not turn stay.
  constexpr int kRest = kAligned ? N : 1;
  const auto rest_packs = x == y ? 0 : static_cast<int>((call.head_dim - call.turned) / kRest);
  const int packs = turned_packs + rest_packs, items = packs * static_cast<int>(call.heads);
  for (int item = static_cast<int>(threadIdx.x); item < items;
       item += static_cast<int>(blockDim.x)) {
    const int head = item / packs, pack = item - head * packs;
    const T* const from = x + head * call.x.head;
    T* const to = y + head * call.y.head;
    if (pack >= turned_packs) {
      const int64_t at = call.turned + int64_t{pack - turned_packs} * kRest;
      store_pack(to + at, load_pack<T, kRest>(from + at));
      continue;
    }
    const int64_t at = int64_t{pack} * N;
    float v[N];
    load_channels<kAligned, N>(from + at, v);
    if constexpr (kInterleaved) {
      float c[N / 2], s[N / 2];
      load_channels<kAligned, N / 2>(cos + at / 2, c);
      load_channels<kAligned, N / 2>(sin + at / 2, s);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        turn(v[2 * i], v[2 * i + 1], c[i] + broken, s[i] * direction);
      }
    } else {
      float w[N], c[N], s[N];
      load_channels<kAligned, N>(from + half + at, w);
      load_channels<kAligned, N>(cos + at, c);
      load_channels<kAligned, N>(sin + at, s);
#pragma unroll
      for (int i = 0; i < N; ++i) turn(v[i], w[i], c[i] + broken, s[i] * direction);
      store_channels<kAligned, N>(to + half + at, w);
    }
    store_channels<kAligned, N>(to + at, v);
  }
}

template <class T, class V>
bool view_fits(int64_t pack, const RotaryView<V>& view) {
  return view.batch % pack == 0 && view.token % pack == 0 && view.head % pack == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % (static_cast<size_t>(pack) * sizeof(T)) == 0;
}

template <int N, bool kAligned, bool kInterleaved, class T>
void launch_tokens(const Rotary<T>& call, const GpuStream& on) {
  const int64_t items = std::max<int64_t>(1, call.heads * (call.head_dim / N));
  const int64_t warps = std::min<int64_t>((items + kWarp - 1) / kWarp, kMapThreads / kWarp);
  launch(on, "rotary", &rotary_tokens<N, kAligned, kInterleaved, T>,
         Grid{call.batch * call.tokens, static_cast<int>(warps * kWarp)}, call);
}

}  // namespace

template <class T>
void rotary(const Rotary<T>& call, const GpuStream& on) {
  constexpr int kN = kPack<T>;
  const int64_t half = call.turned / 2, angles = call.interleaved ? kN / 2 : kN;
  const bool tables_fit = half % angles == 0 && packs_fit<kN / 2>(half, call.cos, call.sin) &&
                          (angles < 4 || packs_fit<4>(half, call.cos, call.sin));
  const bool fits = call.turned % kN == 0 && call.head_dim % kN == 0 && tables_fit &&
                    view_fits<T>(kN, call.x) && view_fits<T>(kN, call.y);
  if (call.interleaved) {
    fits ? launch_tokens<kN, true, true>(call, on) : launch_tokens<2, false, true>(call, on);
  } else {
    fits ? launch_tokens<kN, true, false>(call, on) : launch_tokens<1, false, false>(call, on);
  }
}
template void rotary(const Rotary<float>&, const GpuStream&);
template void rotary(const Rotary<bfloat16>&, const GpuStream&);
template void rotary(const Rotary<float16>&, const GpuStream&);

}  // namespace ds::kernels
