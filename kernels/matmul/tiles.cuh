// Tiles of a matrix product on a GPU: copies of operands to shared memory and the sums of a block.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/matmul/finish.cuh"

namespace ds::kernels::cuda {

// An operand as it is stored: `outer` rows of `inner` dense elements, rows `stride` apart.
template <class T>
struct Stored {
  const T* data = nullptr;
  int64_t stride = 0;
  bool wide = false;  // rows begin at multiples of 16 bytes
};

template <class T>
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  Stored<T> a, b;
  Finish finish;
  int64_t tiles_m = 0, tiles_n = 0;
  int64_t k_part = 0;         // k of a block; blockIdx.y is the part
  float* partials = nullptr;  // [parts, m, n] sums, or null: one part, finished at once
};

// Which tile of C this block has: tiles go by columns of eight, so that blocks that run at the same
// time share operands in the cache.
struct Place {
  int64_t row, column, k_begin, k_end;
};
template <int kM, int kN, class T>
__device__ __forceinline__ Place place_of(const Problem<T>& p) {
  constexpr int64_t kGroup = 8;
  const int64_t block = blockIdx.x, per_group = kGroup * p.tiles_n;
  const int64_t first = block / per_group * kGroup;
  const int64_t height = p.tiles_m - first < kGroup ? p.tiles_m - first : kGroup;
  const int64_t inside = block % per_group;
  const int64_t k_begin = blockIdx.y * p.k_part, k_end = k_begin + p.k_part;
  return {(first + inside % height) * kM, inside / height * kN, k_begin, k_end < p.k ? k_end : p.k};
}

// Calls put(finish) for what a block's sums go to: finish(row, column, sum).
template <class T, class Put>
__device__ __forceinline__ void put_sums(const Problem<T>& p, const Put& put) {
  const auto inside = [&](int64_t row, int64_t column) { return row < p.m && column < p.n; };
  if (p.partials != nullptr) {
    float* const to = p.partials + blockIdx.y * p.m * p.n;
    put([&](int64_t row, int64_t column, float sum) {
      if (inside(row, column)) to[row * p.n + column] = sum;
    });
  } else if (sizeof(T) == 4 || p.finish.wide_out) {
    put([&](int64_t row, int64_t column, float sum) {
      if (inside(row, column)) finish_as<T, float>(p.finish, row, column, sum);
    });
  } else {
    put([&](int64_t row, int64_t column, float sum) {
      if (inside(row, column)) finish_as<T, T>(p.finish, row, column, sum);
    });
  }
}

// ---- 16-bit operands on tensor cores ----

inline constexpr int kDepth = 32;   // of a tile
inline constexpr int kStages = 4;   // tiles in shared memory
inline constexpr int kPadding = 8;  // elements after a row: eight rows then lie in eight places

template <int kTile, bool kAlongK>
struct Layout {
  static constexpr int kOuter = kAlongK ? kTile : kDepth, kInner = kAlongK ? kDepth : kTile;
  static constexpr int kPitch = kInner + kPadding, kElements = kOuter * kPitch;
};

// Elements [outer, outer + L::kOuter) x [inner, inner + L::kInner), zeros beyond the ends.
template <class L, int kThreads, class T>
__device__ __forceinline__ void copy_tile(T* to, const Stored<T>& from, int64_t outer,
                                          int64_t inner, int64_t outer_end, int64_t inner_end) {
  constexpr int kChunks = L::kInner / 8;
  static_assert(L::kOuter * kChunks % kThreads == 0);
#pragma unroll
  for (int i = 0; i < L::kOuter * kChunks / kThreads; ++i) {
    const int chunk = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = chunk / kChunks, column = chunk % kChunks * 8;
    T* const at = to + row * L::kPitch + column;
    int64_t left = outer + row < outer_end ? inner_end - inner - column : 0;
    left = left < 0 ? 0 : left > 8 ? 8 : left;
    const T* const source = from.data + (outer + row) * from.stride + inner + column;
    if (from.wide) {
      copy_async(at, left > 0 ? source : from.data, static_cast<int>(left) * 2);
    } else {
      Pack<T, 8> pack;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        pack.at[e] = T{};
        if (e < left) pack.at[e] = source[e];
      }
      store_pack(at, pack);
    }
  }
}

// The tile of an operand from row or column `first` and from `k` on.
template <class L, bool kAlongK, int kThreads, class T>
__device__ __forceinline__ void copy_operand(T* to, const Stored<T>& from, int64_t first, int64_t k,
                                             int64_t end, int64_t k_end) {
  if constexpr (kAlongK) {
    copy_tile<L, kThreads>(to, from, first, k, end, k_end);
  } else {
    copy_tile<L, kThreads>(to, from, k, first, k_end, end);
  }
}

// What a lane multiplies of 16 rows of A, or 16 columns of B, and 16 steps of k.
template <class L, bool kAlongK, class T>
__device__ __forceinline__ void load_rows(unsigned (&to)[4], const T* tile, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (kAlongK) {
    load_matrices<false>(to, tile + (row + lane % 16) * L::kPitch + k + lane / 16 * 8);
  } else {
    load_matrices<true>(to,
                        tile + (k + lane % 8 + lane / 16 * 8) * L::kPitch + row + lane / 8 % 2 * 8);
  }
}
template <class L, bool kAlongK, class T>
__device__ __forceinline__ void load_columns(unsigned (&to)[4], const T* tile, int column, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (kAlongK) {
    load_matrices<false>(
        to, tile + (column + lane % 8 + lane / 16 * 8) * L::kPitch + k + lane / 8 % 2 * 8);
  } else {
    load_matrices<true>(to, tile + (k + lane % 16) * L::kPitch + column + lane / 16 * 8);
  }
}

// C of kM x kN per block; a warp has kWarpM x kWarpN of it.
template <class T, bool kARows, bool kBRows, int kM, int kN, int kWarpM, int kWarpN>
struct TensorTile {
  static constexpr int kWarpsN = kN / kWarpN, kThreads = kM / kWarpM * kWarpsN * kWarp;
  using A = Layout<kM, kARows>;  // stored [m, k], else [k, m]
  using B = Layout<kN, kBRows>;  // stored [n, k], else [k, n]
  static constexpr int64_t kShared =
      int64_t{kStages} * (A::kElements + B::kElements) * static_cast<int64_t>(sizeof(T));
};

template <class Tile, class T, bool kARows, bool kBRows, int kM, int kN, int kWarpM, int kWarpN>
__global__ void __launch_bounds__(Tile::kThreads) multiply_16bit(Problem<T> p) {
  using A = typename Tile::A;
  using B = typename Tile::B;
  T* const shared = dynamic_shared<T>();
  const auto a_stage = [&](int64_t s) { return shared + s % kStages * A::kElements; };
  const auto b_stage = [&](int64_t s) {
    return shared + kStages * A::kElements + s % kStages * B::kElements;
  };
  const Place place = place_of<kM, kN>(p);
  const int64_t rounds = (place.k_end - place.k_begin + kDepth - 1) / kDepth;
  const auto load = [&](int64_t round) {
    if (round < rounds) {
      const int64_t k = place.k_begin + round * kDepth;
      copy_operand<A, kARows, Tile::kThreads>(a_stage(round), p.a, place.row, k, p.m, place.k_end);
      copy_operand<B, kBRows, Tile::kThreads>(b_stage(round), p.b, place.column, k, p.n,
                                              place.k_end);
    }
    copy_commit();
  };

  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp / Tile::kWarpsN * kWarpM, warp_column = warp % Tile::kWarpsN * kWarpN;
  float sums[kWarpM / 16][kWarpN / 8][4] = {};
  for (int s = 0; s + 1 < kStages; ++s) load(s);
  for (int64_t round = 0; round < rounds; ++round) {
    copy_wait<kStages - 2>();
    __syncthreads();  // the tile is there, and the one before it is done with
    load(round + kStages - 1);
    const T* const a_tile = a_stage(round);
    const T* const b_tile = b_stage(round);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      unsigned a[kWarpM / 16][4], b[kWarpN / 16][4];
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) {
        load_rows<A, kARows>(a[i], a_tile, warp_row + i * 16, k);
      }
#pragma unroll
      for (int j = 0; j < kWarpN / 16; ++j) {
        load_columns<B, kBRows>(b[j], b_tile, warp_column + j * 16, k);
      }
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < kWarpN / 16; ++j) {
          multiply_add<T>(sums[i][2 * j], sums[i][2 * j + 1], a[i], b[j]);
        }
      }
    }
  }
  put_sums(p, [&](const auto& put) {
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kWarpN / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          put(place.row + warp_row + i * 16 + lane / 4 + e / 2 * 8,
              place.column + warp_column + j * 8 + lane % 4 * 2 + e % 2, sums[i][j][e]);
        }
      }
    }
  });
}

// ---- fp32 ----

inline constexpr int kFloatDepth = 16, kFloatThreads = 256;

// A thread has 4 x 4 sums of every 64 x 64 of the tile, k in order.
template <bool kARows, bool kBRows, int kTile>
__global__ void __launch_bounds__(kFloatThreads) multiply_fp32(Problem<float> p) {
  constexpr int kPitch = kTile + 4, kParts = kTile / 64;
  constexpr int kLoads = kTile * kFloatDepth / kFloatThreads;
  __align__(16) __shared__ float a_tile[kFloatDepth * kPitch];
  __align__(16) __shared__ float b_tile[kFloatDepth * kPitch];
  const Place place = place_of<kTile, kTile>(p);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 16 * 4, column = thread % 16 * 4;
  // Consecutive threads take elements that are consecutive in memory.
  const auto place_in = [&](int i, bool along_k, int* tile, int* k) {
    const int index = i * kFloatThreads + thread;
    *tile = along_k ? index / kFloatDepth : index % kTile;
    *k = along_k ? index % kFloatDepth : index / kTile;
  };
  const auto fetch = [&](const Stored<float>& from, bool along_k, int64_t first, int64_t end,
                         int64_t k_first, float* to) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      int tile, k;
      place_in(i, along_k, &tile, &k);
      const int64_t at = first + tile, at_k = k_first + k;
      to[i] = 0;
      if (at < end && at_k < place.k_end) {
        to[i] = from.data[along_k ? at * from.stride + at_k : at_k * from.stride + at];
      }
    }
  };
  const auto lay = [&](float* to, bool along_k, const float* values) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      int tile, k;
      place_in(i, along_k, &tile, &k);
      to[k * kPitch + tile] = values[i];
    }
  };
  float a_next[kLoads], b_next[kLoads], sums[kParts][kParts][4][4] = {};
  fetch(p.a, kARows, place.row, p.m, place.k_begin, a_next);
  fetch(p.b, kBRows, place.column, p.n, place.k_begin, b_next);
  for (int64_t k = place.k_begin; k < place.k_end; k += kFloatDepth) {
    __syncthreads();
    lay(a_tile, kARows, a_next);
    lay(b_tile, kBRows, b_next);
    __syncthreads();
    if (k + kFloatDepth < place.k_end) {
      fetch(p.a, kARows, place.row, p.m, k + kFloatDepth, a_next);
      fetch(p.b, kBRows, place.column, p.n, k + kFloatDepth, b_next);
    }
#pragma unroll
    for (int d = 0; d < kFloatDepth; ++d) {
      Pack<float, 4> a[kParts], b[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        a[part] = load_pack<float, 4>(a_tile + d * kPitch + part * 64 + row);
        b[part] = load_pack<float, 4>(b_tile + d * kPitch + part * 64 + column);
      }
#pragma unroll
      for (int e = 0; e < kParts * kParts * 4; ++e) {
        const int u = e / (kParts * 4), v = e / 4 % kParts, i = e % 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[u][v][i][j] = fmaf(a[u].at[i], b[v].at[j], sums[u][v][i][j]);
        }
      }
    }
  }
  put_sums(p, [&](const auto& put) {
#pragma unroll
    for (int e = 0; e < kParts * kParts * 16; ++e) {
      const int u = e / (kParts * 16), v = e / 16 % kParts, i = e / 4 % 4, j = e % 4;
      put(place.row + u * 64 + row + i, place.column + v * 64 + column + j, sums[u][v][i][j]);
    }
  });
}

// Adds the parts of split sums in their order and finishes.
template <class T, class Out>
__global__ void finish_parts(Problem<T> p, int64_t parts) {
  const int64_t size = p.m * p.n;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < size;
       at += int64_t{gridDim.x} * blockDim.x) {
    float sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += p.partials[part * size + at];
    finish_as<T, Out>(p.finish, at / p.n, at % p.n, sum);
  }
}

}  // namespace ds::kernels::cuda
