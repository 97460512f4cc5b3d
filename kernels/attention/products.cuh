// Tiles of attention on a GPU: their shapes, copies of rows into shared memory and back, and the
// two products that forward and backward consist of. 16-bit types multiply on tensor cores; fp32
// with plain arithmetic, whose lanes have the same elements of the results.
#pragma once

#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/cuda/mma.cuh"

namespace ds::kernels::cuda {

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();
inline constexpr float kLogOf2 = 0.693147180559945f, kLog2OfE = 1.44269504088896f;

// A block has a tile of its own, kBlocks * 16 rows per warp, and visits tiles of kOther rows.
// Products have a row per own token. kD is the head size, padded with zeros.
template <class T, int kD, int kOtherRows, int kRowBlocks, int kWarpCount>
struct Tiling {
  using Type = T;
  static constexpr bool kTensor = sizeof(T) == 2;
  static constexpr int kDim = kD, kOther = kOtherRows, kBlocks = kRowBlocks, kWarps = kWarpCount;
  static constexpr int kWarpRows = 16 * kBlocks, kOwn = kWarpRows * kWarps;
  static constexpr int kThreads = kWarp * kWarps;
  static constexpr int kPitch = kDim + kPack<T>;  // 16 bytes more: eight rows lie in eight places
  static constexpr int kStages = kTensor ? 2 : 1;
  static constexpr int kOwnSize = kOwn * kPitch, kOtherSize = kOther * kPitch;
  static constexpr int kWeightPitch = kOther + 4;  // of weights in fp32, see multiply_weights

  // What follows `own` own tiles and all stages of two other tiles.
  static constexpr int kWeights = kTensor ? 0 : kOwn * kWeightPitch;
  static constexpr int64_t shared(int own) {
    return (int64_t{own} * kOwnSize + int64_t{kStages} * 2 * kOtherSize) *
               static_cast<int64_t>(sizeof(T)) +
           int64_t{kWeights} * 4;
  }
};

// ---- rows ----

// A tensor's rows may be read and written in packs of 16 bytes.
template <class T, class V>
bool rows_fit(const HeadView<V>& view) {
  const auto fits = [](int64_t stride) { return stride % kPack<T> == 0; };
  return fits(view.batch) && fits(view.token) && fits(view.head) &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

template <class V>
struct Rows {
  HeadView<V> view;
  bool wide = false;

  Rows() = default;
  explicit Rows(const HeadView<V>& from)
      : view(from), wide(rows_fit<std::remove_const_t<V>>(from)) {}
  __device__ __forceinline__ V* at(int64_t b, int64_t t, int64_t h) const {
    return view.data + b * view.batch + t * view.token + h * view.head;
  }
};

// Starts copies of kRows rows of `dim` elements: row r lies at at(r), or is 0 where that is null.
template <class Tile, int kRows, class T, class At>
__device__ __forceinline__ void copy_rows(T* to, const Rows<const T>& rows, int dim, const At& at) {
  constexpr int kN = kPack<T>, kChunks = Tile::kDim / kN;
  static_assert(kRows * kChunks % Tile::kThreads == 0);
  const auto chunk = [&](int i, bool wide) {
    const int index = i * Tile::kThreads + static_cast<int>(threadIdx.x);
    const int row = index / kChunks, column = index % kChunks * kN;
    const T* const from = at(row);
    int left = from == nullptr ? 0 : dim - column;
    left = left < 0 ? 0 : left > kN ? kN : left;
    T* const place = to + row * Tile::kPitch + column;
    if (wide) {
      copy_async(place, left > 0 ? from + column : rows.view.data,
                 left * static_cast<int>(sizeof(T)));
      return;
    }
    Pack<T, kN> pack;
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      pack.at[e] = T{};
      if (e < left) pack.at[e] = from[column + e];
    }
    store_pack(place, pack);
  };
  constexpr int kEach = kRows * kChunks / Tile::kThreads;
  if (rows.wide) {
#pragma unroll 4
    for (int i = 0; i < kEach; ++i) chunk(i, true);
  } else {
#pragma unroll 1
    for (int i = 0; i < kEach; ++i) chunk(i, false);
  }
}

// Multiplies a warp's sums by factors of their rows, narrows them, and writes them to the rows
// at(r), of which null are left out, by way of the warp's rows of an own tile.
template <class Tile, class T, class At>
__device__ __forceinline__ void store_rows(const float (&sums)[Tile::kBlocks][Tile::kDim / 8][4],
                                           const float (&factors)[Tile::kBlocks][2], T* own,
                                           bool wide, int dim, const At& at) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < Tile::kBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < Tile::kDim / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Pack<T, 2> two;
        two.at[0] = narrow<T>(sums[m][n][2 * half] * factors[m][half]);
        two.at[1] = narrow<T>(sums[m][n][2 * half + 1] * factors[m][half]);
        store_pack(own + (m * 16 + half * 8 + g) * Tile::kPitch + n * 8 + 2 * t, two);
      }
    }
  }
  __syncwarp();
  constexpr int kN = kPack<T>, kChunks = Tile::kDim / kN;
  for (int index = lane; index < Tile::kWarpRows * kChunks; index += kWarp) {
    const int row = index / kChunks, column = index % kChunks * kN;
    T* const to = at(row);
    if (to == nullptr || column >= dim) continue;
    const Pack<T, kN> pack = load_pack<T, kN>(own + row * Tile::kPitch + column);
    if (wide && column + kN <= dim) {
      store_pack(to + column, pack);
    } else {
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        if (column + e < dim) to[column + e] = pack.at[e];
      }
    }
  }
}

// ---- products ----

// Weights, at most 1, are rounded to the type times 2^kLift: in fp16 small ones would lose digits.
template <class T>
inline constexpr int kLift = std::is_same_v<T, float16> ? 15 : 0;

// 2^x. With 16-bit inputs, whose weights are rounded anyway, in one instruction.
template <class T>
__device__ __forceinline__ float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
#endif
  return exp2f(x);
}

// scores = own[rows, d] other[rows, d]^T for a warp's own rows; `dim` elements count.
template <class Tile, class T>
__device__ __forceinline__ void multiply_rows(float (&scores)[Tile::kBlocks][Tile::kOther / 8][4],
                                              const T* own, const T* other, int dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int m = 0; m < Tile::kBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < Tile::kOther / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[m][n][e] = 0;
    }
  }
  if constexpr (Tile::kTensor) {
#pragma unroll
    for (int k = 0; k < Tile::kDim; k += 16) {
      unsigned a[Tile::kBlocks][4];
#pragma unroll
      for (int m = 0; m < Tile::kBlocks; ++m) {
        load_matrices<false>(a[m], own + (m * 16 + lane % 16) * Tile::kPitch + k + lane / 16 * 8);
      }
#pragma unroll
      for (int n = 0; n < Tile::kOther / 8; n += 2) {
        unsigned b[4];
        load_matrices<false>(
            b, other + (n * 8 + lane % 8 + lane / 16 * 8) * Tile::kPitch + k + lane / 8 % 2 * 8);
#pragma unroll
        for (int m = 0; m < Tile::kBlocks; ++m) {
          multiply_add<T>(scores[m][n], a[m], b[0], b[1]);
          multiply_add<T>(scores[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  } else {
    static_assert(Tile::kBlocks == 1);
    const int g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int k = 0; k < dim; k += 4) {
      const Pack<T, 4> a0 = load_pack<T, 4>(own + g * Tile::kPitch + k);
      const Pack<T, 4> a1 = load_pack<T, 4>(own + (g + 8) * Tile::kPitch + k);
#pragma unroll
      for (int n = 0; n < Tile::kOther / 8; ++n) {
        const T* const row = other + (n * 8 + 2 * t) * Tile::kPitch + k;
        const Pack<T, 4> b0 = load_pack<T, 4>(row), b1 = load_pack<T, 4>(row + Tile::kPitch);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[0][n][0] = fmaf(a0.at[e], b0.at[e], scores[0][n][0]);
          scores[0][n][1] = fmaf(a0.at[e], b1.at[e], scores[0][n][1]);
          scores[0][n][2] = fmaf(a1.at[e], b0.at[e], scores[0][n][2]);
          scores[0][n][3] = fmaf(a1.at[e], b1.at[e], scores[0][n][3]);
        }
      }
    }
  }
}

// sums += weights[own, other] other[rows, d]. In fp32 weights go through the warp's rows of
// `scratch`; those of 16-bit types are rounded to the type.
template <class Tile, class T>
__device__ __forceinline__ void multiply_weights(
    float (&sums)[Tile::kBlocks][Tile::kDim / 8][4],
    const float (&weights)[Tile::kBlocks][Tile::kOther / 8][4], const T* other, float* scratch,
    int dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (Tile::kTensor) {
#pragma unroll
    for (int k = 0; k < Tile::kOther; k += 16) {
      unsigned a[Tile::kBlocks][4];
#pragma unroll
      for (int m = 0; m < Tile::kBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const from = &weights[m][k / 8 + i / 2][i % 2 * 2];
          a[m][i] = pack_two<T>(from[0], from[1]);
        }
      }
#pragma unroll
      for (int n = 0; n < Tile::kDim / 8; n += 2) {
        unsigned b[4];
        load_matrices<true>(b, other + (k + lane % 16) * Tile::kPitch + n * 8 + lane / 16 * 8);
#pragma unroll
        for (int m = 0; m < Tile::kBlocks; ++m) {
          multiply_add<T>(sums[m][n], a[m], b[0], b[1]);
          multiply_add<T>(sums[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  } else {
    static_assert(Tile::kBlocks == 1);
    const int g = lane / 4, t = lane % 4;
    __syncwarp();  // what was there is read
#pragma unroll
    for (int n = 0; n < Tile::kOther / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_pack(scratch + (g + half * 8) * Tile::kWeightPitch + n * 8 + 2 * t,
                   Pack<float, 2>{{weights[0][n][2 * half], weights[0][n][2 * half + 1]}});
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < Tile::kOther; k += 4) {
      const Pack<T, 4> a0 = load_pack<T, 4>(scratch + g * Tile::kWeightPitch + k);
      const Pack<T, 4> a1 = load_pack<T, 4>(scratch + (g + 8) * Tile::kWeightPitch + k);
#pragma unroll
      for (int n = 0; n < Tile::kDim / 8; ++n) {
        if (n * 8 >= dim) continue;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const Pack<T, 2> b = load_pack<T, 2>(other + (k + e) * Tile::kPitch + n * 8 + 2 * t);
          sums[0][n][0] = fmaf(a0.at[e], b.at[0], sums[0][n][0]);
          sums[0][n][1] = fmaf(a0.at[e], b.at[1], sums[0][n][1]);
          sums[0][n][2] = fmaf(a1.at[e], b.at[0], sums[0][n][2]);
          sums[0][n][3] = fmaf(a1.at[e], b.at[1], sums[0][n][3]);
        }
      }
    }
  }
}

}  // namespace ds::kernels::cuda
