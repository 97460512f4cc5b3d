// Gradients of normalisation on a GPU. A block has a chunk of rows (gpu_chunks.h) and goes through
// them once: what it reads of a row makes its dx, and its part of dgamma and dbeta, which stay in
// registers until the chunk ends. Chunks are added in order. Rows that are too wide for registers,
// or of single elements, take two passes, columns before rows.
#pragma once

#include "kernels/norm/packs.cuh"

namespace ds::kernels::norm {

// ---- rows of a chunk in registers ----

inline constexpr int kChunkWarps = 8;

// The packs of a row that a lane has.
template <int kSlots, class T>
struct GradientRow {
  Words<T> dy[kSlots], x[kSlots], direct[kSlots];
  float mean = 0, rstd = 0;
};

template <int kSlots, class Call>
__device__ __forceinline__ void load_row(const Call& call, int64_t row, int lane, int lanes,
                                         GradientRow<kSlots, typename Call::Type>& r) {
  using T = typename Call::Type;
  constexpr int N = kPack<T>;
  const int64_t at = row * call.cols;
  for_slots<kSlots, N>(call.cols, lane, lanes, [&](int slot, int64_t column) {
    r.dy[slot] = load_words(call.dy + at + column);
    r.x[slot] = load_words(call.sum + at + column);
    if (call.dsum != nullptr) r.direct[slot] = load_words(call.dsum + at + column);
  });
  r.rstd = call.rstd[row];
  if constexpr (Call::kCentred) r.mean = call.mean[row];
}

// A chunk's sums of dy xhat and of dy in a lane's columns.
template <int kSlots, int N, bool kCentred>
struct ColumnSums {
  static constexpr int kEach = kSlots * N, kAll = (kCentred ? 2 : 1) * kEach;
  float at[kAll];
};

// Adds a row to the sums by column, and returns its own: of g and of g xhat.
template <int kSlots, bool kCentred, class T>
__device__ __forceinline__ float2 add_row(const GradientRow<kSlots, T>& r, const Words<T>* gamma,
                                          int64_t cols, int lane, int lanes,
                                          ColumnSums<kSlots, kPack<T>, kCentred>& sums) {
  constexpr int N = kPack<T>;
  float2 total{0, 0};
  for_slots<kSlots, N>(cols, lane, lanes, [&](int slot, int64_t) {
    float dy[N], x[N], scale[N];
    widen_words(r.dy[slot], dy);
    widen_words(r.x[slot], x);
    widen_words(gamma[slot], scale);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float xhat = (x[i] - r.mean) * r.rstd, g = dy[i] * scale[i];
      total.y = fmaf(g, xhat, total.y);
      float* const of_column = sums.at + slot * N + i;
      of_column[0] = fmaf(dy[i], xhat, of_column[0]);
      if constexpr (kCentred) {
        total.x += g;
        of_column[kSlots * N] += dy[i];
      }
    }
  });
  if constexpr (kCentred) {
    float both[] = {total.x, total.y};
    warp_sums(both);
    return {both[0], both[1]};
  } else {
    return {total.x, warp_sum(total.y)};
  }
}

// `means` are those of g and g xhat. dx may be dy or dsum: each lane has read what it overwrites.
template <int kSlots, class Call, class T>
__device__ __forceinline__ void store_dx(const Call& call, int64_t row, int lane, int lanes,
                                         const GradientRow<kSlots, T>& r, const Words<T>* gamma,
                                         float2 means) {
  constexpr int N = kPack<T>;
  for_slots<kSlots, N>(call.cols, lane, lanes, [&](int slot, int64_t column) {
    float dx[N], x[N], scale[N];
    widen_words(r.dy[slot], dx);
    widen_words(r.x[slot], x);
    widen_words(gamma[slot], scale);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float xhat = (x[i] - r.mean) * r.rstd, g = dx[i] * scale[i];
      dx[i] = r.rstd * (g - means.x - xhat * means.y);
    }
    if (call.dsum != nullptr) {
      float direct[N];
      widen_words(r.direct[slot], direct);
#pragma unroll
      for (int i = 0; i < N; ++i) dx[i] += direct[i];
    }
    store_narrow<N>(call.dx + row * call.cols + column, dx);
  });
}

// Adds the sums of the groups of lanes that had different rows of a chunk; the first has all then.
// They meet in pairs, in a fixed order.
template <int kSlots, int N, bool kCentred>
__device__ __forceinline__ void add_groups(int group, int groups, int lane, int lanes,
                                           float* shared, ColumnSums<kSlots, N, kCentred>& sums) {
  constexpr int kAll = ColumnSums<kSlots, N, kCentred>::kAll;
  for (int half = groups / 2; half > 0; half /= 2) {
    __syncthreads();
    float* const place = shared + (group % half) * kAll * lanes + lane;
    if (group >= half && group < 2 * half) {
#pragma unroll
      for (int i = 0; i < kAll; ++i) place[i * lanes] = sums.at[i];
    }
    __syncthreads();
    if (group < half) {
#pragma unroll
      for (int i = 0; i < kAll; ++i) sums.at[i] += place[i * lanes];
    }
  }
}

template <int kSlots, class Call>
__device__ __forceinline__ void store_partials(
    const Call& call, int64_t chunks, int lane, int lanes,
    const ColumnSums<kSlots, kPack<typename Call::Type>, Call::kCentred>& sums) {
  constexpr int N = kPack<typename Call::Type>;
  const int64_t chunk = blockIdx.x;
  for_slots<kSlots, N>(call.cols, lane, lanes, [&](int slot, int64_t column) {
    float* const to = call.partials + chunk * call.cols + column;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      to[i] = sums.at[slot * N + i];
      if constexpr (Call::kCentred) to[chunks * call.cols + i] = sums.at[(kSlots + slot) * N + i];
    }
  });
}

// Of kMany, `row_warps` warps share a row, else one has it.
template <int kSlots, bool kMany, class Call>
__global__ void __launch_bounds__(kChunkWarps* kWarp, kSlots > 3 ? 1 : 2)
    backward_chunks(Call call, int64_t chunk_rows, int64_t chunks, int row_warps) {
  using T = typename Call::Type;
  constexpr int N = kPack<T>;
  using Sums = ColumnSums<kSlots, N, Call::kCentred>;
  __shared__ float exchange[Sums::kAll * kWarp * kChunkWarps / 2];
  __shared__ float2 of_warps[2][kChunkWarps];
  const int warps = kMany ? row_warps : 1, lanes = warps * kWarp, groups = kChunkWarps / warps;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = warp / warps, lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t cols = call.cols, begin = int64_t{blockIdx.x} * chunk_rows;
  const int64_t end = begin + chunk_rows < call.rows ? begin + chunk_rows : call.rows;
  const float count = static_cast<float>(cols);
  Words<T> gamma[kSlots];
  for_slots<kSlots, N>(cols, lane, lanes, [&](int slot, int64_t column) {
    gamma[slot] = load_words(call.gamma + column);
  });
  Sums sums{};
  int turn = 0;
  for (int64_t first = begin; first < end; first += groups, turn ^= 1) {
    const int64_t row = first + group;
    const bool mine = row < end;
    if (!kMany && !mine) break;
    GradientRow<kSlots, T> r;
    float2 total{0, 0};
    if (mine) {
      load_row<kSlots>(call, row, lane, lanes, r);
      total = add_row<kSlots, Call::kCentred>(r, gamma, cols, lane, lanes, sums);
      widen_again<kSlots>(r.dy);
      widen_again<kSlots>(r.x);
      widen_again<kSlots>(gamma);
    }
    if constexpr (kMany) {
      // Two places in turn: who writes the first again has seen that all have read it.
      if (lane % kWarp == 0) of_warps[turn][warp] = total;
      __syncthreads();
      total = {0, 0};
      for (int i = 0; i < warps; ++i) {
        total.x += of_warps[turn][group * warps + i].x;
        total.y += of_warps[turn][group * warps + i].y;
      }
    }
    if (mine)
      store_dx<kSlots>(call, row, lane, lanes, r, gamma, {total.x / count, total.y / count});
    widen_again<kSlots>(gamma);
  }
  add_groups<kSlots, N, Call::kCentred>(group, groups, lane, lanes, exchange, sums);
  if (group == 0) store_partials<kSlots>(call, chunks, lane, lanes, sums);
}

// ---- the sums of chunks ----

inline constexpr int kAddColumns = 32;
inline constexpr int kAddLanes = 16;

// Adds the chunks of a column: each of 16 threads every 16th, then what they have, in order.
template <class Call>
__global__ void __launch_bounds__(kAddColumns* kAddLanes) add_chunks(Call call, int64_t chunks) {
  __shared__ float sums[2][kAddLanes][kAddColumns];
  const int in_block = static_cast<int>(threadIdx.x) % kAddColumns;
  const int lane = static_cast<int>(threadIdx.x) / kAddColumns;
  const int64_t column = int64_t{blockIdx.x} * kAddColumns + in_block;
  float dgamma = 0, dbeta = 0;
  if (column < call.cols) {
#pragma unroll 4
    for (int64_t chunk = lane; chunk < chunks; chunk += kAddLanes) {
      dgamma += call.partials[chunk * call.cols + column];
      if constexpr (Call::kCentred) dbeta += call.partials[(chunks + chunk) * call.cols + column];
    }
  }
  sums[0][lane][in_block] = dgamma;
  sums[1][lane][in_block] = dbeta;
  __syncthreads();
  if (lane != 0 || column >= call.cols) return;
  for (int i = 1; i < kAddLanes; ++i) {
    dgamma += sums[0][i][in_block];
    dbeta += sums[1][i][in_block];
  }
  call.dgamma[column] += dgamma;
  if constexpr (Call::kCentred) call.dbeta[column] += dbeta;
}

// ---- a block has a row, columns are another pass ----

template <int N, class Call>
__global__ void __launch_bounds__(kMostThreads) backward_rows(Call call) {
  __shared__ float partial[kMostWarps];
  const int64_t row = blockIdx.x, cols = call.cols, at = row * cols;
  const float count = static_cast<float>(cols), rstd = call.rstd[row];
  float mean = 0;
  if constexpr (Call::kCentred) mean = call.mean[row];
  float g_kept[kKept], x_kept[kKept], g_one[N], x_one[N];
  float g_sum = 0, gx_sum = 0;
  // g = dy gamma and xhat of a pack.
  const auto load = [&](int64_t column, float* g, float* x) {
    float gamma[N];
    load_wide<N>(call.dy + at + column, g);
    load_wide<N>(call.sum + at + column, x);
    load_wide<N>(call.gamma + column, gamma);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      g[i] *= gamma[i];
      x[i] = (x[i] - mean) * rstd;
    }
  };
  const auto add = [&](const float* g, const float* x) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (Call::kCentred) g_sum += g[i];
      gx_sum += g[i] * x[i];
    }
  };
  for_packs<N>(cols, [&](int slot, int64_t column) {
    load(column, g_kept + slot, x_kept + slot);
    add(g_kept + slot, x_kept + slot);
  });
  for_rest<N>(cols, [&](int64_t column) {
    load(column, g_one, x_one);
    add(g_one, x_one);
  });
  if constexpr (Call::kCentred) g_sum = block_sum(g_sum, partial) / count;
  gx_sum = block_sum(gx_sum, partial) / count;
  const auto write = [&](int64_t column, float* g, const float* x) {
    float direct[N] = {};
    if (call.dsum != nullptr) load_wide<N>(call.dsum + at + column, direct);
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] = rstd * (g[i] - g_sum - x[i] * gx_sum) + direct[i];
    store_narrow<N>(call.dx + at + column, g);
  };
  for_packs<N>(cols,
               [&](int slot, int64_t column) { write(column, g_kept + slot, x_kept + slot); });
  for_rest<N>(cols, [&](int64_t column) {
    load(column, g_one, x_one);
    write(column, g_one, x_one);
  });
}

inline constexpr int kColumnsPerBlock = 64;
inline constexpr int kRowsAtOnce = 4;

// A chunk of rows' own sums of dy xhat and dy, by column. Runs before dx, which may be dy.
template <class Call>
__global__ void __launch_bounds__(kColumnsPerBlock* kRowsAtOnce)
    column_partials(Call call, int64_t chunk_size, int64_t chunks) {
  __shared__ float sums[2][kRowsAtOnce][kColumnsPerBlock];
  const int64_t chunk = blockIdx.y;
  const int in_block = static_cast<int>(threadIdx.x) % kColumnsPerBlock;
  const int lane_row = static_cast<int>(threadIdx.x) / kColumnsPerBlock;
  const int64_t column = int64_t{blockIdx.x} * kColumnsPerBlock + in_block;
  const int64_t begin = chunk * chunk_size;
  const int64_t end = begin + chunk_size < call.rows ? begin + chunk_size : call.rows;
  float dgamma = 0, dbeta = 0;
  if (column < call.cols) {
    for (int64_t row = begin + lane_row; row < end; row += kRowsAtOnce) {
      const float dy = widen(call.dy[row * call.cols + column]);
      float x = widen(call.sum[row * call.cols + column]);
      if constexpr (Call::kCentred) x -= call.mean[row];
      dgamma += dy * (x * call.rstd[row]);
      dbeta += dy;
    }
  }
  sums[0][lane_row][in_block] = dgamma;
  sums[1][lane_row][in_block] = dbeta;
  __syncthreads();
  if (lane_row != 0 || column >= call.cols) return;
  for (int i = 1; i < kRowsAtOnce; ++i) {
    dgamma += sums[0][i][in_block];
    dbeta += sums[1][i][in_block];
  }
  call.partials[chunk * call.cols + column] = dgamma;
  if constexpr (Call::kCentred) call.partials[(chunks + chunk) * call.cols + column] = dbeta;
}

}  // namespace ds::kernels::norm
