// How threads go through a row of a normalisation: as the packs of a block, which beyond what it
// keeps in registers reads again, or as packs that all lie in the registers of a few warps.
#pragma once

#include "kernels/cuda/device.cuh"

namespace ds::kernels::norm {

using namespace cuda;

// ---- a block has a row ----

inline constexpr int kMostThreads = 512;
inline constexpr int kMostWarps = kMostThreads / kWarp;
// Elements of a row that a thread keeps in registers; the rest is read again.
inline constexpr int kKept = 16;

// Threads for rows of `cols` elements: whole warps, each thread with at least one pack.
inline int threads_for(int64_t cols, int pack) {
  const int64_t wanted = (cols + pack - 1) / pack;
  const int64_t warps = (wanted + kWarp - 1) / kWarp;
  return static_cast<int>(warps < kMostWarps ? warps : kMostWarps) * kWarp;
}

// Calls visit(pack_index, kept_slot, column) for the packs of a row that this thread has.
template <int N, class Visit>
__device__ __forceinline__ void for_packs(int64_t cols, const Visit& visit) {
  const int64_t step = int64_t{N} * blockDim.x;
  int64_t column = int64_t{N} * threadIdx.x;
#pragma unroll
  for (int slot = 0; slot < kKept / N; ++slot, column += step) {
    if (column < cols) visit(slot * N, column);
  }
}

// The rest of a row beyond what threads keep.
template <int N, class Visit>
__device__ __forceinline__ void for_rest(int64_t cols, const Visit& visit) {
  const int64_t step = int64_t{N} * blockDim.x;
  for (int64_t column = int64_t{N} * threadIdx.x + step * (kKept / N); column < cols;
       column += step) {
    visit(column);
  }
}

template <int N, class T>
__device__ __forceinline__ void load_wide(const T* from, float* to) {
  const Pack<T, N> pack = load_pack<T, N>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = widen(pack.at[i]);
}
template <int N, class T>
__device__ __forceinline__ void store_narrow(T* to, const float* from) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.at[i] = narrow<T>(from[i]);
  store_pack(to, pack);
}

// s = x + residual, rounded to the type and stored where a sum is wanted.
template <int N, class Call>
__device__ __forceinline__ void load_sum(const Call& call, int64_t at, float* s) {
  using T = typename Call::Type;
  load_wide<N>(call.x + at, s);
  if (call.residual == nullptr) {
    if (call.sum != nullptr && call.sum != call.x) store_narrow<N>(call.sum + at, s);
    return;
  }
  float r[N];
  load_wide<N>(call.residual + at, r);
#pragma unroll
  for (int i = 0; i < N; ++i) s[i] = widen(narrow<T>(s[i] + r[i]));
  store_narrow<N>(call.sum + at, s);
}

// s again, after load_sum.
template <int N, class Call>
__device__ __forceinline__ void reload_sum(const Call& call, int64_t at, float* s) {
  load_wide<N>(call.residual == nullptr ? call.x + at : call.sum + at, s);
}

// ---- warps have a row ----

// Calls visit(slot, column) for the packs of a row that lie in a lane's registers: `lanes` lanes
// share the row, and this is number `lane` of them.
template <int kSlots, int N, class Visit>
__device__ __forceinline__ void for_slots(int64_t cols, int lane, int lanes, const Visit& visit) {
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int64_t column = int64_t{N} * (slot * lanes + lane);
    if (column < cols) visit(slot, column);
  }
}

// 16 bytes of a row as they lie in memory: a thread that keeps them has four registers less free,
// and not one for each element.
template <class T>
struct Words {
  unsigned at[4];
};

template <class T>
__device__ __forceinline__ Words<T> load_words(const T* from) {
  const Pack<unsigned, 4> pack = load_pack<unsigned, 4>(reinterpret_cast<const unsigned*>(from));
  return {pack.at[0], pack.at[1], pack.at[2], pack.at[3]};
}

template <class T>
__device__ __forceinline__ void widen_words(const Words<T>& words, float* to) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned word = words.at[i];
    if constexpr (sizeof(T) == 4) {
      to[i] = __uint_as_float(word);
    } else {
      T low, high;
      low.bits = static_cast<uint16_t>(word);
      high.bits = static_cast<uint16_t>(word >> 16);
      to[2 * i] = widen(low);
      to[2 * i + 1] = widen(high);
    }
  }
}

template <class T>
__device__ __forceinline__ Words<T> narrow_words(const float* from) {
  Words<T> words;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words.at[i] = __float_as_uint(from[i]);
    } else {
      words.at[i] = unsigned{narrow<T>(from[2 * i]).bits} |
                    static_cast<unsigned>(narrow<T>(from[2 * i + 1]).bits) << 16;
    }
  }
  return words;
}

template <class T>
__device__ __forceinline__ void store_words(T* to, const Words<T>& words) {
  store_pack(reinterpret_cast<unsigned*>(to),
             Pack<unsigned, 4>{words.at[0], words.at[1], words.at[2], words.at[3]});
}

// Makes the compiler forget what it has computed from the words, which it would keep instead.
template <int kSlots, class T>
__device__ __forceinline__ void widen_again(Words<T>* words) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(words[slot].at[i]));
  }
#else
  static_cast<void>(words);
#endif
}

}  // namespace ds::kernels::norm
