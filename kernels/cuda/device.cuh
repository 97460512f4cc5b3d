// What device code of all families shares: element types, wide loads, sums over warps and blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "kernels/cuda/launch.h"

namespace ds::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// ---- element types: storage as on the CPU, arithmetic in fp32 ----

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ __forceinline__ float widen(float16 value) {
#ifdef __CUDA_ARCH__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
#else
  return to_float(value);
#endif
}

// Rounds to nearest even, like the CPU.
template <class T>
__device__ __forceinline__ T narrow(float value) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    T out;
    if constexpr (std::is_same_v<T, bfloat16>) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
    }
    return out;
  } else {
    return value;
  }
#else
  return from_float<T>(value);
#endif
}

// ---- wide access ----

// N elements that move together; aligned so that they do so in one access of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Pack {
  using Element = T;
  T at[N];
};

// Elements of T that 16 bytes hold.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Whether all pointers (null counts as any) and a row length allow packs of N elements of T.
template <int N, class... T>
bool packs_fit(int64_t row, const T*... pointers) {
  return row % N == 0 &&
         ((reinterpret_cast<uintptr_t>(pointers) % (sizeof(T) * N > 16 ? 16 : sizeof(T) * N) ==
           0) &&
          ...);
}

// ---- over the lanes of a warp, in a fixed order: the same bits in every run ----

// What `combine`, which holds nothing, makes of all lanes' values, in every lane. A T that is no
// number brings of_lane(with), its value in the lane whose number differs by the bits of `with`.
template <class T, class Combine>
__device__ __forceinline__ T warp_combine(T value, Combine combine) {
#ifdef __CUDACC__
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    if constexpr (std::is_arithmetic_v<T>) {
      value = combine(value, __shfl_xor_sync(kAllLanes, value, offset));
    } else {
      value = combine(value, value.of_lane(offset));
    }
  }
  return value;
#else
  return emulation::combine_lanes(value, combine);  // the same in one exchange
#endif
}

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_combine(value, [](T a, T b) { return a + b; });
}

template <class T>
__device__ __forceinline__ T warp_max(T value) {
  return warp_combine(value, [](T a, T b) { return b > a ? b : a; });
}

// Several sums.
template <class T, int N>
__device__ __forceinline__ void warp_sums(T (&values)[N]) {
#ifdef __CUDACC__
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = warp_sum(values[i]);
#else
  // The same in one exchange.
  emulation::add_lanes(values);
#endif
}

// The sum over all threads of a block, for every thread of it. `shared` holds one T per warp;
// blocks are whole warps, and the same array may be used again at once.
template <class T>
__device__ __forceinline__ T block_sum(T value, T* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = warp_sum(value);
  if (warps == 1) return value;
  __syncthreads();  // the last use of `shared`
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  T total = T();
  for (int i = 0; i < warps; ++i) total += shared[i];
  return total;
}

// The bytes of dynamic shared memory of the block.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(128) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
#else
  return static_cast<T*>(emulation::shared_memory());
#endif
}

}  // namespace ds::kernels::cuda
