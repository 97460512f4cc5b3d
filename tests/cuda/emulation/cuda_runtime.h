// What nvcc gives to device code, for compiling kernels as C++: the words of the language, the
// built-in variables, barriers, exchanges within a warp, atomics. A block's threads are fibers that
// take turns (fibers.cc); blocks run one after another. What kernels may use is what is here.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <type_traits>
#define DS_EMULATED_GPU
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __restrict__ __restrict
#define __grid_constant__
// Blocks run one after another on one thread; their content begins undefined, as on a GPU. How many
// bytes a kernel declares, static_shared.cc reads in the program's symbols.
#define __shared__ static thread_local

struct uint3 {
  unsigned x, y, z;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

namespace emulation {

// Queues a kernel: `body` runs once for every thread. For launch() of kernels/cuda/launch.h.
cudaError_t launch(const void* kernel, cudaStream_t stream, dim3 blocks, dim3 threads,
                   size_t shared, std::function<void()> body);
void* shared_memory();

void block_barrier();
// Waits until the lanes of `mask` that still run have come here, and shows what each brought:
// 32 slots of `size` bytes. They last until the lane's next barrier. `together` runs on them once,
// before any lane goes on; it is the same for all.
using Together = void (*)(unsigned char* slots);
const unsigned char* exchange(unsigned mask, const void* mine, size_t size,
                              Together together = nullptr);

// What every lane brought, for emulating instructions of whole warps (mma, ldmatrix).
template <class T>
std::array<T, 32> all_lanes(const T& mine, unsigned mask = 0xFFFFFFFFu) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::array<T, 32> out{};
  std::memcpy(static_cast<void*>(out.data()), exchange(mask, &mine, sizeof(T)), 32 * sizeof(T));
  return out;
}

int lane();

template <class T>
T from_slot(const unsigned char* slots, int index) {
  T out;
  std::memcpy(static_cast<void*>(&out), slots + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return out;
}

template <class T>
T from_lane(unsigned mask, T value, int source) {
  return from_slot<T>(exchange(mask, &value, sizeof(T)), source & 31);
}

// What Combine, which has no state, makes of all lanes' values in every lane: stage by stage, as a
// loop over __shfl_xor_sync with 16, 8, 4, 2 and 1 does.
template <class T, class Combine>
void combine_slots(unsigned char* slots) {
  std::array<T, 32> lanes, next;
  std::memcpy(static_cast<void*>(lanes.data()), slots, sizeof(lanes));
  for (unsigned apart = 16; apart > 0; apart /= 2) {
    for (unsigned i = 0; i < 32; ++i) next[i] = Combine{}(lanes[i], lanes[i ^ apart]);
    lanes = next;
  }
  std::memcpy(slots, static_cast<const void*>(lanes.data()), sizeof(lanes));
}

template <class T, class Combine>
T combine_lanes(T value, Combine) {
  return from_slot<T>(exchange(0xFFFFFFFFu, &value, sizeof(T), &combine_slots<T, Combine>), lane());
}

template <class T, int N>
void add_lanes(T (&values)[N]) {
  struct Several {
    T at[N];
  };
  Several all;
  std::memcpy(all.at, values, sizeof(values));
  all = combine_lanes(all, [](Several a, const Several& b) {
    for (int i = 0; i < N; ++i) a.at[i] += b.at[i];
    return a;
  });
  std::memcpy(values, all.at, sizeof(values));
}

// Bit i says whether lane i's word is not zero, in every lane.
inline void vote(unsigned char* slots) {
  std::array<unsigned, 32> words;
  std::memcpy(words.data(), slots, sizeof(words));
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; ++i) bits |= words[i] != 0 ? 1u << i : 0u;
  words.fill(bits);
  std::memcpy(slots, words.data(), sizeof(words));
}

}  // namespace emulation

inline void __syncthreads() { emulation::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { emulation::exchange(mask, "", 1); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emulation::from_lane(mask, value,
                              (emulation::lane() & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int = 32) {
  return emulation::from_lane(mask, value, emulation::lane() ^ with);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = emulation::lane(), to = lane + static_cast<int>(delta);
  return emulation::from_lane(mask, value, (to ^ lane) & ~(width - 1) ? lane : to);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = emulation::lane(), to = lane - static_cast<int>(delta);
  return emulation::from_lane(mask, value, to < (lane & ~(width - 1)) ? lane : to);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const unsigned mine = predicate != 0 ? 1 : 0;
  return emulation::from_slot<unsigned>(
      emulation::exchange(mask, &mine, sizeof(mine), &emulation::vote), emulation::lane());
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <class T>
T __ldg(const T* from) {
  return *from;
}
// Threads take turns only at barriers, so plain arithmetic is atomic.
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to = static_cast<T>(before + value);
  return before;
}
template <class T>
T atomicMax(T* to, T value) {
  const T before = *to;
  if (value > before) *to = value;
  return before;
}
template <class T>
T atomicMin(T* to, T value) {
  const T before = *to;
  if (value < before) *to = value;
  return before;
}
template <class T>
T atomicCAS(T* to, T expected, T value) {
  const T before = *to;
  if (before == expected) *to = value;
  return before;
}

inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline float __expf(float value) { return std::exp(value); }
inline float __logf(float value) { return std::log(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float value) { return 1.0f / value; }
inline float __fsqrt_rn(float value) { return std::sqrt(value); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline void __trap() { std::abort(); }
