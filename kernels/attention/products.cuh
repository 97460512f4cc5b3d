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

// A block has a tile of its own, kBlocks * 16 rows per warp, and visits tiles of kOther rows, of
// which it multiplies kStep at a time. Products have a row per own token. kD is the head size,
// padded with zeros; kResident the blocks that a multiprocessor shall have room for; kKeeps
// which of the own tiles stay in registers.
enum class Keep { kNone, kFirst, kBoth };
template <class T, int kD, int kOtherRows, int kStepRows, int kRowBlocks, int kWarpCount,
          int kResidentBlocks, Keep kKeeps = Keep::kNone>
struct Tiling {
  using Type = T;
  static constexpr bool kTensor = sizeof(T) == 2;
  static constexpr int kDim = kD, kOther = kOtherRows, kStep = kStepRows, kBlocks = kRowBlocks;
  static constexpr int kWarps = kWarpCount, kResident = kResidentBlocks;
  static constexpr bool kKeepsFirst = kKeeps != Keep::kNone, kKeepsSecond = kKeeps == Keep::kBoth;
  static_assert(kOther % kStep == 0 && kStep % 16 == 0);
  static constexpr int kWarpRows = 16 * kBlocks, kOwn = kWarpRows * kWarps;
  static constexpr int kThreads = kWarp * kWarps;
  static constexpr int kPitch = kDim + kPack<T>;  // 16 bytes more: eight rows lie in eight places
  static constexpr int kStages = kTensor ? 2 : 1;
  static constexpr int kOwnSize = kOwn * kPitch, kOtherSize = kOther * kPitch;
  static constexpr int kWeightPitch = kStep + 4;  // of weights in fp32, see multiply_weights

  // What follows `own` own tiles and all stages of two other tiles.
  static constexpr int kWeights = kTensor ? 0 : kOwn * kWeightPitch;
  static constexpr int64_t shared(int own) {
    return (int64_t{own} * kOwnSize + int64_t{kStages} * 2 * kOtherSize) *
               static_cast<int64_t>(sizeof(T)) +
           int64_t{kWeights} * 4;
  }
};

// The shared memory of a block, as Tiling::shared() counts it: own tiles, the stages of a tile of
// one tensor and of one of another behind it, and in fp32 the weights of every warp.
template <class Tile, int kOwnTiles>
struct SharedTiles {
  using T = typename Tile::Type;
  T* const own;

  __device__ __forceinline__ SharedTiles() : own(dynamic_shared<T>()) {}
  __device__ __forceinline__ T* second_own() const { return own + Tile::kOwnSize; }
  __device__ __forceinline__ T* first(int stage) const {
    return own + kOwnTiles * Tile::kOwnSize + stage * 2 * Tile::kOtherSize;
  }
  __device__ __forceinline__ T* second(int stage) const { return first(stage) + Tile::kOtherSize; }
  __device__ __forceinline__ float* weights(int warp_row) const {
    return reinterpret_cast<float*>(first(Tile::kStages)) +
           (Tile::kTensor ? 0 : warp_row * Tile::kWeightPitch);
  }
};

// The tile of `stage` is there, and nobody reads the other stage any more: the next tile goes
// there.
template <class Tile, class Load>
__device__ __forceinline__ void start_next(int next, int stage, const Load& load) {
  if constexpr (Tile::kStages > 1) {
    if (next >= 0) load(next, stage ^ 1);
    copy_commit();
  }
}
// The block is through with a tile, and where it `shares` with what it found out about that.
template <class Tile, class Load>
__device__ __forceinline__ void leave_tile(bool shares, int next, const Load& load) {
  if constexpr (Tile::kStages > 1) {
    if (shares) __syncthreads();  // it is read
  } else {
    __syncthreads();  // so is the stage
    if (next >= 0) load(next, 0);
    copy_commit();
  }
}

// Which warp of the block this is. From one lane, the compiler sees that all lanes have the same
// number: that saves registers, or costs some.
template <bool kFromOneLane>
__device__ __forceinline__ int warp_of() {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  return kFromOneLane ? __shfl_sync(kAllLanes, warp, 0) : warp;
}

// kPlain: the band alone hides keys, and all tensors are wide. kMasked: also key masks, segments
// and dropout, which take registers. kSplit: a block has few rows, all query heads of a kv head,
// and a part of the keys.
enum class Form { kPlain, kMasked, kSplit };

// ---- rows ----

// A tensor's rows of `dim` elements may be read and written in packs of 16 bytes.
template <class T, class V>
bool rows_fit(const HeadView<V>& view, int64_t dim) {
  const auto fits = [](int64_t stride) { return stride % kPack<T> == 0; };
  return fits(view.batch) && fits(view.token) && fits(view.head) && fits(dim) &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

template <class V>
struct HeadRows {
  HeadView<V> view;
  bool wide = false;

  HeadRows() = default;
  HeadRows(const HeadView<V>& from, int64_t dim)
      : view(from), wide(rows_fit<std::remove_const_t<V>>(from, dim)) {}
  __device__ __forceinline__ V* at(int b, int t, int h) const {
    return view.data + b * view.batch + t * view.token + h * view.head;
  }
};

// Which packs of a tile of kRows rows a thread copies: the same columns of several rows, or several
// columns of the same rows.
template <class Tile, int kRows>
struct CopyPlan {
  static constexpr int kN = kPack<typename Tile::Type>, kChunks = Tile::kDim / kN;
  static constexpr int kApart = Tile::kThreads > kChunks ? Tile::kThreads / kChunks : 1;
  static constexpr int kParts = kChunks > Tile::kThreads ? kChunks / Tile::kThreads : 1;
  static constexpr int kEach = kRows / kApart * kParts;
  static constexpr int kAtOnce = kEach < 8 ? kEach : 4;
  static_assert(kRows % kApart == 0 && kApart * kChunks == kParts * Tile::kThreads);

  static __device__ __forceinline__ int row(int i) {
    return static_cast<int>(threadIdx.x) / kChunks + i / kParts * kApart;
  }
  static __device__ __forceinline__ int column(int i) {
    return static_cast<int>(threadIdx.x) % kChunks * kN + i % kParts * Tile::kThreads * kN;
  }
  static __device__ __forceinline__ int place(int i) { return row(i) * Tile::kPitch + column(i); }
};

// Copies a pack of a row of which `left` elements are there, one by one.
template <class T>
__device__ __forceinline__ void copy_elements(T* to, const T* from, int left) {
  Pack<T, kPack<T>> pack;
#pragma unroll
  for (int e = 0; e < kPack<T>; ++e) {
    pack.at[e] = T{};
    if (e < left) pack.at[e] = from[e];
  }
  store_pack(to, pack);
}

// Starts copies of kRows rows of `dim` elements: row r lies at at(r), or is 0 where that is null.
template <class Tile, int kRows, class T, class At>
__device__ __forceinline__ void copy_rows(T* to, const HeadRows<const T>& rows, int dim,
                                          const At& at) {
  using Plan = CopyPlan<Tile, kRows>;
#pragma unroll 1
  for (int i = 0; i < Plan::kEach; ++i) {
    const int column = Plan::column(i);
    const T* const from = at(Plan::row(i));
    const int left = from == nullptr ? 0 : dim - column;
    if (rows.wide) {
      copy_async(to + Plan::place(i), left > 0 ? from + column : rows.view.data, left > 0 ? 16 : 0);
    } else {
      copy_elements(to + Plan::place(i), from + column, left);
    }
  }
}

// A head of a sequence from one token on.
struct TokenPlace {
  int b, head, first;
};

// Starts copies of kRows tokens of one head of two tensors, which then follow each
// other. What `shown` does not say to be there is 0. kWide: both are known to be wide.
template <class Tile, int kRows, bool kWide = false, class T, class Shown>
__device__ __forceinline__ void copy_tokens(T* to, const HeadRows<const T>& one,
                                            const HeadRows<const T>& other, const TokenPlace& place,
                                            int dim, const Shown& shown) {
  const auto [b, head, first] = place;
  using Plan = CopyPlan<Tile, kRows>;
  [[maybe_unused]] constexpr int kAtOnce = Plan::kAtOnce;
  constexpr int kOther = kRows * Tile::kPitch;
  const T *const start_one = one.at(b, first, head), *const start_other = other.at(b, first, head);
  if (kWide || (one.wide && other.wide)) {
    const T* from_one = start_one + Plan::row(0) * one.view.token;
    const T* from_other = start_other + Plan::row(0) * other.view.token;
#pragma unroll kAtOnce
    for (int i = 0; i < Plan::kEach; ++i) {
      const int column = Plan::column(i);
      const int bytes = column < dim && shown(first + Plan::row(i)) ? 16 : 0;
      copy_async(to + Plan::place(i), from_one + column, bytes);
      copy_async(to + kOther + Plan::place(i), from_other + column, bytes);
      if (i % Plan::kParts == Plan::kParts - 1) {
        from_one += Plan::kApart * one.view.token;
        from_other += Plan::kApart * other.view.token;
      }
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < Plan::kEach; ++i) {
      const int row = Plan::row(i), column = Plan::column(i);
      const int left = shown(first + row) ? dim - column : 0;
      copy_elements(to + Plan::place(i), start_one + row * one.view.token + column, left);
      copy_elements(to + kOther + Plan::place(i), start_other + row * other.view.token + column,
                    left);
    }
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
    if (wide) {
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

// A warp's own rows as the first operand of multiply_rows, read from the tile for every product.
template <class Tile>
struct OwnInShared {
  const typename Tile::Type* rows;
  __device__ __forceinline__ explicit OwnInShared(const typename Tile::Type* tile) : rows(tile) {}
  // What holds columns k ... k + 15.
  __device__ __forceinline__ void get(unsigned (&a)[Tile::kBlocks][4], int k) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int m = 0; m < Tile::kBlocks; ++m) {
      load_matrices<false>(a[m], rows + (m * 16 + lane % 16) * Tile::kPitch + k + lane / 16 * 8);
    }
  }
};

// The same, kept in registers: the products read shared memory for their second operand only, and
// its bandwidth is what limits them.
template <class Tile>
struct OwnInRegisters {
  unsigned columns[Tile::kDim / 16][Tile::kBlocks][4];
  __device__ __forceinline__ explicit OwnInRegisters(const typename Tile::Type* tile) {
    const OwnInShared<Tile> rows(tile);
#pragma unroll
    for (int k = 0; k < Tile::kDim; k += 16) rows.get(columns[k / 16], k);
  }
  __device__ __forceinline__ void get(unsigned (&a)[Tile::kBlocks][4], int k) const {
#pragma unroll
    for (int i = 0; i < 4 * Tile::kBlocks; ++i) a[i / 4][i % 4] = columns[k / 16][i / 4][i % 4];
  }
};

template <class Tile, bool kInRegisters>
using OwnRows =
    std::conditional_t<kInRegisters && Tile::kTensor, OwnInRegisters<Tile>, OwnInShared<Tile>>;

// scores = own[rows, d] other[step, d]^T for a warp's own rows; `dim` elements count.
template <class Tile, class Own, class T>
__device__ __forceinline__ void multiply_rows(float (&scores)[Tile::kBlocks][Tile::kStep / 8][4],
                                              const Own& own, const T* other, int dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int m = 0; m < Tile::kBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < Tile::kStep / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[m][n][e] = 0;
    }
  }
  if constexpr (Tile::kTensor) {
#pragma unroll
    for (int k = 0; k < Tile::kDim; k += 16) {
      unsigned a[Tile::kBlocks][4];
      own.get(a, k);
#pragma unroll
      for (int n = 0; n < Tile::kStep / 8; n += 2) {
        unsigned b[4];
        load_matrices<false>(
            b, other + (n * 8 + lane % 8 + lane / 16 * 8) * Tile::kPitch + k + lane / 8 % 2 * 8);
#pragma unroll
        for (int m = 0; m < Tile::kBlocks; ++m) {
          multiply_add<T>(scores[m][n], scores[m][n + 1], a[m], b);
        }
      }
    }
  } else {
    static_assert(Tile::kBlocks == 1);
    const int g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int k = 0; k < dim; k += 4) {
      const Pack<T, 4> a0 = load_pack<T, 4>(own.rows + g * Tile::kPitch + k);
      const Pack<T, 4> a1 = load_pack<T, 4>(own.rows + (g + 8) * Tile::kPitch + k);
#pragma unroll
      for (int n = 0; n < Tile::kStep / 8; ++n) {
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

// sums += weights[own, step] other[step, d]. In fp32 weights go through the warp's rows of
// `scratch`; those of 16-bit types are rounded to the type.
template <class Tile, class T>
__device__ __forceinline__ void multiply_weights(
    float (&sums)[Tile::kBlocks][Tile::kDim / 8][4],
    const float (&weights)[Tile::kBlocks][Tile::kStep / 8][4], const T* other, float* scratch,
    int dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (Tile::kTensor) {
#pragma unroll
    for (int k = 0; k < Tile::kStep; k += 16) {
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
          multiply_add<T>(sums[m][n], sums[m][n + 1], a[m], b);
        }
      }
    }
  } else {
    static_assert(Tile::kBlocks == 1);
    const int g = lane / 4, t = lane % 4;
    __syncwarp();  // what was there is read
#pragma unroll
    for (int n = 0; n < Tile::kStep / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_pack(scratch + (g + half * 8) * Tile::kWeightPitch + n * 8 + 2 * t,
                   Pack<float, 2>{{weights[0][n][2 * half], weights[0][n][2 * half + 1]}});
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < Tile::kStep; k += 4) {
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
