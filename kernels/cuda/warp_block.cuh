// Blocks of elements that a warp has at once, each lane some packs of four: scales and sums of a
// block come from exchanges within the warp.
#pragma once

#include "kernels/cuda/device.cuh"

namespace ds::kernels::cuda {

inline constexpr int kPackOf = 4;

// Where a lane's elements lie: element e is number at(e / 4) + e % 4 of the arrays.
template <int kPacks>
struct WarpBlock {
  static constexpr int kOwn = kPackOf * kPacks;  // elements of a lane

  int64_t first;  // of the block
  int64_t end;    // of the block, or of the arrays
  int lane;
  bool wide;  // packs of the block are aligned

  __device__ __forceinline__ int64_t at(int pack) const {
    return first + (pack * kWarp + lane) * kPackOf;
  }
  __device__ __forceinline__ int64_t of(int e) const { return at(e / kPackOf) + e % kPackOf; }
  __device__ __forceinline__ bool whole(int pack) const {
    return wide && at(pack) + kPackOf <= end;
  }

  // Bits of the lane's elements in [begin, stop).
  __device__ __forceinline__ unsigned bits_within(int64_t begin, int64_t stop) const {
    unsigned mask = 0;
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      if (of(e) >= begin && of(e) < stop) mask |= 1u << e;
    }
    return mask;
  }

  // What lies beyond the end reads as 0.
  template <class T>
  __device__ __forceinline__ void read(const T* from, T* to) const {
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      if (whole(pack)) {
        const Pack<T, kPackOf> p = load_pack<T, kPackOf>(from + at(pack));
#pragma unroll
        for (int e = 0; e < kPackOf; ++e) to[pack * kPackOf + e] = p.at[e];
      } else {
#pragma unroll
        for (int e = 0; e < kPackOf; ++e) {
          const int64_t i = at(pack) + e;
          to[pack * kPackOf + e] = i < end ? from[i] : T{};
        }
      }
    }
  }
  template <class T>
  __device__ __forceinline__ void read_wide(const void* from, float* to) const {
    T values[kOwn];
    read(static_cast<const T*>(from), values);
#pragma unroll
    for (int e = 0; e < kOwn; ++e) to[e] = widen(values[e]);
  }

  // Writes the elements whose bits are set.
  template <class T>
  __device__ __forceinline__ void write(unsigned mask, const T* from, T* to) const {
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      const unsigned bits = mask >> pack * kPackOf & 0xFu;
      if (bits == 0xFu && wide) {
        Pack<T, kPackOf> p;
#pragma unroll
        for (int e = 0; e < kPackOf; ++e) p.at[e] = from[pack * kPackOf + e];
        store_pack(to + at(pack), p);
      } else {
#pragma unroll
        for (int e = 0; e < kPackOf; ++e) {
          if ((bits >> e & 1u) != 0) to[at(pack) + e] = from[pack * kPackOf + e];
        }
      }
    }
  }
  template <class T>
  __device__ __forceinline__ void write_narrow(unsigned mask, const float* from, void* to) const {
    T values[kOwn];
#pragma unroll
    for (int e = 0; e < kOwn; ++e) values[e] = narrow<T>(from[e]);
    write(mask, values, static_cast<T*>(to));
  }
};

}  // namespace ds::kernels::cuda
