// What the rotary kernels of a GPU share: packs of channels, and how they turn.
#pragma once

#include "kernels/cuda/map.cuh"
#include "kernels/rotary/rotary.h"

namespace ds::kernels::cuda {

// (a, b) rotated; s has the sign of the direction.
__device__ __forceinline__ void turn(float& a, float& b, float c, float s) {
  const float rotated = fmaf(-b, s, a * c);
  b = fmaf(a, s, b * c);
  a = rotated;
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

// The cosines and sines of a position. One outside the tables makes NaN of what it should turn.
struct Angles {
  const float *cos, *sin;
  float direction, broken;
  __device__ __forceinline__ Angles(const float* cos_table, const float* sin_table, int64_t half,
                                    int64_t position, int64_t rows, bool inverse)
      : direction(inverse ? -1.0f : 1.0f) {
    const bool known = position >= 0 && position < rows;
    cos = cos_table + (known ? position * half : 0);
    sin = sin_table + (known ? position * half : 0);
    broken = known ? 0.0f : __uint_as_float(0x7FC00000u);
  }
};

// Pack number `pack` of a head's rotated channels: N that lie together, and with pairs of halves
// the N that belong to them, `half` further on.
template <int N, bool kAligned, bool kInterleaved, class T>
__device__ __forceinline__ void turn_pack(const T* from, T* to, int pack, int64_t half,
                                          const Angles& angles) {
  const int64_t at = int64_t{pack} * N;
  float v[N];
  load_channels<kAligned, N>(from + at, v);
  if constexpr (kInterleaved) {
    float c[N / 2], s[N / 2];
    load_channels<kAligned, N / 2>(angles.cos + at / 2, c);
    load_channels<kAligned, N / 2>(angles.sin + at / 2, s);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      turn(v[2 * i], v[2 * i + 1], c[i] + angles.broken, s[i] * angles.direction);
    }
  } else {
    float w[N], c[N], s[N];
    load_channels<kAligned, N>(from + half + at, w);
    load_channels<kAligned, N>(angles.cos + at, c);
    load_channels<kAligned, N>(angles.sin + at, s);
#pragma unroll
    for (int i = 0; i < N; ++i) turn(v[i], w[i], c[i] + angles.broken, s[i] * angles.direction);
    store_channels<kAligned, N>(to + half + at, w);
  }
  store_channels<kAligned, N>(to + at, v);
}

template <class T, class V>
bool view_fits(int64_t pack, const RotaryView<V>& view) {
  return view.batch % pack == 0 && view.token % pack == 0 && view.head % pack == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % (static_cast<size_t>(pack) * sizeof(T)) == 0;
}

// Whether packs of the type fit heads and tables.
template <class T>
bool channels_fit(int64_t head_dim, int64_t rotary_dim, bool interleaved, const float* cos,
                  const float* sin) {
  constexpr int kN = kPack<T>;
  if (rotary_dim % kN != 0 || head_dim % kN != 0) return false;
  if (rotary_dim == 0) return true;
  const int64_t half = rotary_dim / 2, angles = interleaved ? kN / 2 : kN;
  return half % angles == 0 && packs_fit<kN / 2>(half, cos, sin) &&
         (angles < 4 || packs_fit<4>(half, cos, sin));
}

}  // namespace ds::kernels::cuda
