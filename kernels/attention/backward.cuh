// The backward kernels of attention on a GPU. Weights are computed again from the logarithms of the
// forward pass; no two blocks add to the same number, so that results have the same bits every
// time: one kernel has a tile of keys and visits queries, for dk and dv; one has a tile of queries
// and visits keys, for dq.
#pragma once

#include "kernels/attention/cover.cuh"
#include "kernels/attention/products.cuh"

namespace ds::kernels::cuda {

template <class T>
struct Backward {
  Rows<const T> q, k, v, out, dout;
  Rows<T> dq, dk, dv;
  const float* lse = nullptr;
  float* delta = nullptr;  // [batch, heads, queries]: dout . out
  Cover cover;
  Dropout dropout;
  int64_t heads, kv_heads, group;  // group: query heads of a kv head
  int dim;
  float scale, power_scale;  // of scores; of scores for powers of two
  int64_t tiles = 0;

  explicit Backward(const AttentionProblem& p)
      : dropout(p),
        heads(p.heads),
        kv_heads(p.kv_heads),
        group(p.heads / p.kv_heads),
        dim(static_cast<int>(p.head_dim)),
        scale(p.scale),
        power_scale(p.scale * kLog2OfE) {}
};

// The logarithm of a row's sum for powers of two.
__device__ __forceinline__ float binary_log(float lse) { return lse * kLog2OfE; }

// Turns a lane's scores into lifted weights and the gradients of weights into those of scores
// before scaling. stats(m, n, e) gives the row's logarithm and delta, seen(m, n, e) whether the
// pair counts where not all do, kept(m, n, e) what dropout keeps.
template <class Tile, bool kGradients, class Stats, class Seen, class Kept>
__device__ __forceinline__ void weigh(float (&scores)[Tile::kBlocks][Tile::kOther / 8][4],
                                      float (&grads)[Tile::kBlocks][Tile::kOther / 8][4],
                                      float scale, bool all_seen, const Dropout& dropout,
                                      const Stats& stats, const Seen& seen, const Kept& kept) {
  using T = typename Tile::Type;
#pragma unroll
  for (int i = 0; i < Tile::kBlocks * Tile::kOther / 2; ++i) {
    const int m = i / (Tile::kOther / 2), n = i / 4 % (Tile::kOther / 8), e = i % 4;
    const Pack<float, 2> row = stats(m, n, e);
    float weight = power_of_two<T>(fmaf(scores[m][n][e], scale, -row.at[0])), grad = 0;
    if constexpr (kGradients) {
      grad = grads[m][n][e];
      if (dropout.active) grad = kept(m, n, e) ? grad * dropout.factor : 0.0f;
      grad = weight * (grad - row.at[1]);
    }
    if (!all_seen && !seen(m, n, e)) weight = grad = 0;
    scores[m][n][e] = weight * (1 << kLift<T>);
    if constexpr (kGradients) grads[m][n][e] = grad;
  }
}

template <class Tile, class Kept>
__device__ __forceinline__ void drop(float (&weights)[Tile::kBlocks][Tile::kOther / 8][4],
                                     const Kept& kept) {
#pragma unroll
  for (int i = 0; i < Tile::kBlocks * Tile::kOther / 2; ++i) {
    const int m = i / (Tile::kOther / 2), n = i / 4 % (Tile::kOther / 8), e = i % 4;
    if (!kept(m, n, e)) weights[m][n][e] = 0;
  }
}

template <int kN>
__device__ __forceinline__ void fill_factors(float (&factors)[kN][2], float value) {
#pragma unroll
  for (int i = 0; i < 2 * kN; ++i) factors[i / 2][i % 2] = value;
}

// delta, a warp per row.
template <int kThreads, class T>
__global__ void __launch_bounds__(kThreads) row_deltas(Backward<T> call, int64_t rows) {
  const int64_t row =
      int64_t{blockIdx.x} * (kThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int64_t query = row % call.cover.queries, part = row / call.cover.queries;
  const int64_t b = part / call.heads, head = part % call.heads;
  const T* const out = call.out.at(b, query, head);
  const T* const dout = call.dout.at(b, query, head);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0;
  for (int d = lane; d < call.dim; d += kWarp) sum = fmaf(widen(out[d]), widen(dout[d]), sum);
  sum = warp_sum(sum);
  if (lane == 0) call.delta[row] = sum;
}

// What a block of key_gradients makes: wide heads leave registers for one of the two.
enum class Part { kBoth, kKeys, kValues };

template <class Tile, Part kPart, class T>
__global__ void __launch_bounds__(Tile::kThreads) key_gradients(Backward<T> call) {
  constexpr int kOwn = Tile::kOwn, kOther = Tile::kOther;
  constexpr bool kWithKeys = kPart != Part::kValues, kWithValues = kPart != Part::kKeys;
  static_assert(Tile::kBlocks == 1 && kOwn == kUnitTokens);
  using Bits = KeptBits<kOther, kOwn>;
  __shared__ int64_t own_notes[kOwn], notes[kOther];
  __shared__ Pack<float, 2> stats[kOther];
  __shared__ uint8_t kept[Bits::kSize];
  T* const k_tile = dynamic_shared<T>();
  T* const v_tile = k_tile + Tile::kOwnSize;
  const auto q_stage = [&](int s) { return v_tile + Tile::kOwnSize + s * 2 * Tile::kOtherSize; };
  const auto dout_stage = [&](int s) { return q_stage(s) + Tile::kOtherSize; };
  const Cover& cover = call.cover;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Tile::kWarpRows;
  float* const scratch = reinterpret_cast<float*>(q_stage(Tile::kStages)) +  // of the warp
                         (Tile::kTensor ? 0 : warp_row * Tile::kWeightPitch);

  const int64_t tile_index = blockIdx.x % call.tiles, part = blockIdx.x / call.tiles;
  const int64_t b = part / call.kv_heads, kv_head = part % call.kv_heads;
  const int first_key = static_cast<int>(tile_index) * kOwn;
  const int last_key = (first_key + kOwn < cover.keys ? first_key + kOwn : cover.keys) - 1;
  const auto place = [&](int half) { return warp_row + half * 8 + lane / 4; };

  // The tiles of queries, for every query head in turn.
  const TileRange own = range_of(cover.units_of(b), cover.unit_count, first_key, kOwn);
  const auto query = [&](int at) { return at < 0 ? 0 : at > cover.queries ? cover.queries : at; };
  const int first_query = query(first_key - cover.offset - cover.ahead);
  const int end_query = query(last_key - cover.offset + cover.behind + 1);
  const Walk<kOther, false> from_start{first_query / kOther * kOther, own.any ? end_query : 0,
                                       cover.ids == nullptr ? nullptr : cover.units_of(b), own};
  Walk<kOther, false> walk = from_start;
  int64_t head = kv_head * call.group, next_head = head;
  const int64_t end_head = head + call.group;
  const auto next_tile = [&] {
    const int tile = walk.next();
    if (tile >= 0 || next_head + 1 >= end_head) return tile;
    ++next_head;
    walk = from_start;
    return walk.next();
  };

  const auto load = [&](int tile, int stage) {
    const auto row_of = [&](int row, const Rows<const T>& from) -> const T* {
      return tile + row < cover.queries ? from.at(b, tile + row, next_head) : nullptr;
    };
    copy_rows<Tile, kOther>(q_stage(stage), call.q, call.dim,
                            [&](int row) { return row_of(row, call.q); });
    copy_rows<Tile, kOther>(dout_stage(stage), call.dout, call.dim,
                            [&](int row) { return row_of(row, call.dout); });
  };
  const auto own_row = [&](int row, const Rows<const T>& from) -> const T* {
    const int at = first_key + row;
    return at < cover.keys && !cover.masked(b, at) ? from.at(b, at, kv_head) : nullptr;
  };
  copy_rows<Tile, kOwn>(k_tile, call.k, call.dim, [&](int row) { return own_row(row, call.k); });
  copy_rows<Tile, kOwn>(v_tile, call.v, call.dim, [&](int row) { return own_row(row, call.v); });
  for (int row = static_cast<int>(threadIdx.x); row < kOwn; row += Tile::kThreads) {
    const int key = first_key + row;
    const bool seen = key < cover.keys && !cover.masked(b, key);
    own_notes[row] = seen ? cover.id(b, key) : kUnseenOwn;
  }

  float dk[1][Tile::kDim / 8][4] = {}, dv[1][Tile::kDim / 8][4] = {};
  int tile = next_tile();
  if (tile >= 0) load(tile, 0);
  copy_commit();
  for (int stage = 0; tile >= 0;) {
    head = next_head;
    const int next = next_tile();
    if constexpr (Tile::kStages > 1) {
      if (next >= 0) load(next, stage ^ 1);
      copy_commit();
    }
    copy_wait<Tile::kStages - 1>();
    const bool in_band = cover.band_holds(tile, tile + kOther - 1, first_key, first_key + kOwn - 1);
    bool with_notes = tile + kOther > cover.queries || !own.all;
    if (cover.ids != nullptr) {
      const TileRange range = range_of(cover.units_of(b), cover.unit_count, tile, kOther);
      with_notes = with_notes || own.least != own.most || range.least != range.most;
    }
    for (int i = static_cast<int>(threadIdx.x); i < kOther; i += Tile::kThreads) {
      const int at = tile + i;
      const bool there = at < cover.queries;
      const int64_t row = (b * call.heads + head) * cover.queries + at;
      stats[i] = {{there ? binary_log(call.lse[row]) : 0.0f, there ? call.delta[row] : 0.0f}};
      notes[i] = there ? cover.id(b, at) : kUnseenOther;
    }
    const auto keys = static_cast<uint64_t>(cover.keys);
    const uint64_t element = call.dropout.element(b, call.heads, head, cover, tile, first_key);
    if (call.dropout.active) {
      Bits::template fill<Tile::kThreads>(call.dropout, element, keys, kept);
    }
    __syncthreads();

    const auto column = [&](int n, int e) { return n * 8 + lane % 4 * 2 + e % 2; };
    const auto is_kept = [&](int, int n, int e) {
      return Bits::at(kept, element, keys, column(n, e), place(e / 2));
    };
    const auto seen = [&](int, int n, int e) {
      const int at = column(n, e);
      const int distance = first_key + place(e / 2) - tile - at - cover.offset + cover.behind;
      const bool inside =
          static_cast<unsigned>(distance) <= static_cast<unsigned>(cover.behind + cover.ahead);
      return inside && (!with_notes || own_notes[place(e / 2)] == notes[at]);
    };
    float weights[1][kOther / 8][4], grads[1][kOther / 8][4];
    multiply_rows<Tile>(weights, k_tile + warp_row * Tile::kPitch, q_stage(stage), call.dim);
    if constexpr (kWithKeys) {
      multiply_rows<Tile>(grads, v_tile + warp_row * Tile::kPitch, dout_stage(stage), call.dim);
    }
    weigh<Tile, kWithKeys>(
        weights, grads, call.power_scale, in_band && !with_notes, call.dropout,
        [&](int, int n, int e) { return stats[column(n, e)]; }, seen, is_kept);
    if constexpr (kWithValues) {
      if (call.dropout.active) drop<Tile>(weights, is_kept);
      multiply_weights<Tile>(dv, weights, dout_stage(stage), scratch, call.dim);
    }
    if constexpr (kWithKeys) {
      multiply_weights<Tile>(dk, grads, q_stage(stage), scratch, call.dim);
    }
    __syncthreads();  // the stage and what is beside it may change
    if constexpr (Tile::kStages > 1) {
      stage ^= 1;
    } else {
      if (next >= 0) load(next, 0);
      copy_commit();
    }
    tile = next;
  }
  copy_wait<0>();
  __syncthreads();

  float factors[1][2];
  const auto store = [&](const float(&sums)[1][Tile::kDim / 8][4], float factor, T* through,
                         const Rows<T>& to) {
    fill_factors(factors, factor);
    store_rows<Tile>(sums, factors, through + warp_row * Tile::kPitch, to.wide, call.dim,
                     [&](int row) -> T* {
                       const int key = first_key + warp_row + row;
                       return key < cover.keys ? to.at(b, key, kv_head) : nullptr;
                     });
  };
  if constexpr (kWithKeys) store(dk, call.scale, k_tile, call.dk);
  if constexpr (kWithValues) store(dv, call.dropout.factor / (1 << kLift<T>), v_tile, call.dv);
}

template <class Tile, class T>
__global__ void __launch_bounds__(Tile::kThreads) query_gradients(Backward<T> call) {
  constexpr int kOwn = Tile::kOwn, kOther = Tile::kOther;
  static_assert(Tile::kBlocks == 1);
  using Bits = KeptBits<kOwn, kOther>;
  __shared__ int64_t own_notes[kOwn], notes[kOther];
  __shared__ uint8_t kept[Bits::kSize];
  T* const q_tile = dynamic_shared<T>();
  T* const dout_tile = q_tile + Tile::kOwnSize;
  const auto k_stage = [&](int s) { return dout_tile + Tile::kOwnSize + s * 2 * Tile::kOtherSize; };
  const auto v_stage = [&](int s) { return k_stage(s) + Tile::kOtherSize; };
  const Cover& cover = call.cover;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Tile::kWarpRows;
  float* const scratch = reinterpret_cast<float*>(k_stage(Tile::kStages)) +  // of the warp
                         (Tile::kTensor ? 0 : warp_row * Tile::kWeightPitch);

  // The heaviest tiles first.
  const int64_t tile_index = call.tiles - 1 - blockIdx.x % call.tiles;
  const int64_t part = blockIdx.x / call.tiles, b = part / call.heads, head = part % call.heads;
  const int64_t kv_head = head / call.group;
  const int first_query = static_cast<int>(tile_index) * kOwn;
  const int last_query =
      (first_query + kOwn < cover.queries ? first_query + kOwn : cover.queries) - 1;
  const auto place = [&](int half) { return warp_row + half * 8 + lane / 4; };

  const TokenUnit* const units = cover.units_of(b);
  TileRange wanted;
  if (cover.ids != nullptr) wanted = range_of(units, cover.unit_count, first_query, kOwn);
  Walk<kOther, true> walk{cover.first_key(first_query) / kOther * kOther, cover.end_key(last_query),
                          units, wanted};
  const auto load = [&](int tile, int stage) {
    const auto row_of = [&](int row, const Rows<const T>& from) -> const T* {
      const int at = tile + row;
      return at < cover.keys && !cover.masked(b, at) ? from.at(b, at, kv_head) : nullptr;
    };
    copy_rows<Tile, kOther>(k_stage(stage), call.k, call.dim,
                            [&](int row) { return row_of(row, call.k); });
    copy_rows<Tile, kOther>(v_stage(stage), call.v, call.dim,
                            [&](int row) { return row_of(row, call.v); });
  };
  const auto own_row = [&](int row, const Rows<const T>& from) -> const T* {
    return first_query + row <= last_query ? from.at(b, first_query + row, head) : nullptr;
  };
  copy_rows<Tile, kOwn>(q_tile, call.q, call.dim, [&](int row) { return own_row(row, call.q); });
  copy_rows<Tile, kOwn>(dout_tile, call.dout, call.dim,
                        [&](int row) { return own_row(row, call.dout); });
  for (int row = static_cast<int>(threadIdx.x); row < kOwn; row += Tile::kThreads) {
    own_notes[row] = first_query + row <= last_query ? cover.id(b, first_query + row) : 0;
  }
  Pack<float, 2> stats[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + place(half);
    const bool there = query <= last_query;
    const int64_t row = (b * call.heads + head) * cover.queries + query;
    stats[half] = {{there ? binary_log(call.lse[row]) : 0.0f, there ? call.delta[row] : 0.0f}};
  }

  float dq[1][Tile::kDim / 8][4] = {};
  int tile = walk.next();
  if (tile >= 0) load(tile, 0);
  copy_commit();
  for (int stage = 0; tile >= 0;) {
    const int next = walk.next();
    if constexpr (Tile::kStages > 1) {
      if (next >= 0) load(next, stage ^ 1);
      copy_commit();
    }
    copy_wait<Tile::kStages - 1>();
    const TileRange range = range_of(units, cover.unit_count, tile, kOther);
    const bool in_band = cover.band_holds(first_query, last_query, tile, tile + kOther - 1);
    const bool with_notes = tile + kOther > cover.keys || !range.all ||
                            wanted.least != wanted.most || range.least != range.most;
    if (with_notes) {
      for (int i = static_cast<int>(threadIdx.x); i < kOther; i += Tile::kThreads) {
        const int key = tile + i;
        const bool there = key < cover.keys && !cover.masked(b, key);
        notes[i] = there ? cover.id(b, key) : kUnseenOther;
      }
    }
    const auto keys = static_cast<uint64_t>(cover.keys);
    const uint64_t element = call.dropout.element(b, call.heads, head, cover, first_query, tile);
    if (call.dropout.active) {
      Bits::template fill<Tile::kThreads>(call.dropout, element, keys, kept);
    }
    __syncthreads();

    const auto column = [&](int n, int e) { return n * 8 + lane % 4 * 2 + e % 2; };
    const auto seen = [&](int, int n, int e) {
      const int at = column(n, e);
      const int distance = tile + at - first_query - place(e / 2) - cover.offset + cover.behind;
      const bool inside =
          static_cast<unsigned>(distance) <= static_cast<unsigned>(cover.behind + cover.ahead);
      return inside && (!with_notes || own_notes[place(e / 2)] == notes[at]);
    };
    float weights[1][kOther / 8][4], grads[1][kOther / 8][4];
    multiply_rows<Tile>(weights, q_tile + warp_row * Tile::kPitch, k_stage(stage), call.dim);
    multiply_rows<Tile>(grads, dout_tile + warp_row * Tile::kPitch, v_stage(stage), call.dim);
    weigh<Tile, true>(
        weights, grads, call.power_scale, in_band && !with_notes, call.dropout,
        [&](int, int, int e) { return stats[e / 2]; }, seen,
        [&](int, int n, int e) {
          return Bits::at(kept, element, keys, place(e / 2), column(n, e));
        });
    multiply_weights<Tile>(dq, grads, k_stage(stage), scratch, call.dim);
    __syncthreads();  // the stage and what is beside it may change
    if constexpr (Tile::kStages > 1) {
      stage ^= 1;
    } else {
      if (next >= 0) load(next, 0);
      copy_commit();
    }
    tile = next;
  }
  copy_wait<0>();
  __syncthreads();

  float factors[1][2];
  fill_factors(factors, call.scale);
  store_rows<Tile>(dq, factors, q_tile + warp_row * Tile::kPitch, call.dq.wide, call.dim,
                   [&](int row) -> T* {
                     const int query = first_query + warp_row + row;
                     return query <= last_query ? call.dq.at(b, query, head) : nullptr;
                   });
}

}  // namespace ds::kernels::cuda
