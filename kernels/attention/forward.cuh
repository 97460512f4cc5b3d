// The forward kernel of attention on a GPU: online softmax of a tile of queries over tiles of keys.
// With kSplit a block has few rows, all query heads of a kv head, and a part of the keys.
#pragma once

#include "kernels/attention/cover.cuh"
#include "kernels/attention/products.cuh"

namespace ds::kernels::cuda {

inline constexpr int kSplitKeys = 256;  // of a block with kSplit: results do not depend on the GPU

template <class T>
struct Forward {
  Rows<const T> q, k, v;
  Rows<T> out;
  float* lse = nullptr;  // [batch, heads, queries]
  Cover cover;
  Dropout dropout;
  int64_t heads, group;  // group: query heads of a kv head
  int dim;
  float scale;  // of scores, for powers of two
  int64_t tiles;
  // kSplit: keys from split_begin on; what a row has of a split is at (row * splits + split) *
  // pitch, its values, maximum and sum. Null with one split.
  int split_begin = 0;
  int64_t splits = 1, pitch = 0;
  float* partials = nullptr;
  // kSplit, or null: how many keys lie before the first query. Then the cover, `split_begin` and
  // `splits` are those of the most keys that there may be.
  const int32_t* past = nullptr;

  __device__ __forceinline__ Cover actual_cover() const {
    Cover actual = cover;
    if (past != nullptr) {
      const int most = cover.keys - cover.queries;
      actual.offset = *past < 0 ? 0 : *past > most ? most : *past;
      actual.keys = actual.offset + cover.queries;
    }
    return actual;
  }
  __device__ __forceinline__ int actual_begin(const Cover& actual) const {
    return past == nullptr ? split_begin : actual.first_key(0) / kSplitKeys * kSplitKeys;
  }
  __device__ __forceinline__ int64_t actual_splits(const Cover& actual) const {
    if (past == nullptr) return splits;
    const int keys = actual.end_key(actual.queries - 1) - actual_begin(actual);
    return keys <= kSplitKeys ? 1 : (keys + kSplitKeys - 1) / kSplitKeys;
  }

  explicit Forward(const AttentionProblem& p)
      : dropout(p),
        heads(p.heads),
        group(p.heads / p.kv_heads),
        dim(static_cast<int>(p.head_dim)),
        scale(p.scale * kLog2OfE) {}
};

// Scales the scores of a lane and makes those of hidden pairs -inf. `low` is the first key that the
// band shows a row, and `place(row)` the row's place in the own tile.
template <class Tile, class Place>
__device__ __forceinline__ void hide(float (&scores)[Tile::kBlocks][Tile::kOther / 8][4],
                                     float scale, Look look, const Cover& cover, int first_key,
                                     const int (&low)[Tile::kBlocks][2], const Place& place,
                                     const int64_t* own_notes, const int64_t* notes) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto span = static_cast<unsigned>(cover.behind + cover.ahead);
#pragma unroll
  for (int m = 0; m < Tile::kBlocks; ++m) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int from = first_key - low[m][e / 2] + 2 * t + e % 2;
      const int64_t own = look == Look::kNotes ? own_notes[place(m, e / 2)] : 0;
#pragma unroll
      for (int n = 0; n < Tile::kOther / 8; ++n) {
        float& score = scores[m][n][e];
        score *= scale;
        if (look == Look::kAll) continue;
        bool seen = static_cast<unsigned>(from + n * 8) <= span;
        if (look == Look::kNotes) seen = seen && notes[n * 8 + 2 * t + e % 2] == own;
        score = seen ? score : kLowest;
      }
    }
  }
}

// Turns scores into weights relative to the rows' maxima so far, to which it brings sums and
// values.
template <class Tile>
__device__ __forceinline__ void soften(float (&scores)[Tile::kBlocks][Tile::kOther / 8][4],
                                       float (&top)[Tile::kBlocks][2],
                                       float (&sums)[Tile::kBlocks][2],
                                       float (&values)[Tile::kBlocks][Tile::kDim / 8][4]) {
  using T = typename Tile::Type;
#pragma unroll
  for (int m = 0; m < Tile::kBlocks; ++m) {
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = top[m][half];
#pragma unroll
      for (int n = 0; n < Tile::kOther / 8; ++n) {
        best = fmaxf(best, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
      // A row that has seen nothing yet: any finite reference makes all its weights 0.
      const float finite = best == kLowest ? 0.0f : best, reference = finite - kLift<T>;
      shrink[half] = power_of_two<T>(top[m][half] - finite);
      top[m][half] = best;
      float sum = sums[m][half] * shrink[half];
#pragma unroll
      for (int n = 0; n < Tile::kOther / 8; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[m][n][e] = power_of_two<T>(scores[m][n][e] - reference);
          sum += scores[m][n][e];
        }
      }
      sums[m][half] = sum;
    }
    // Maxima seldom change after the first tiles.
    if (__any_sync(kAllLanes, shrink[0] != 1 || shrink[1] != 1) == 0) continue;
#pragma unroll
    for (int n = 0; n < Tile::kDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[m][n][e] *= shrink[e / 2];
    }
  }
}

template <class Tile, bool kSplit, class T>
__global__ void __launch_bounds__(Tile::kThreads) attend(Forward<T> call) {
  constexpr int kOwn = Tile::kOwn, kOther = Tile::kOther;
  using Bits = KeptBits<kOwn, kOther>;
  __shared__ int64_t own_notes[kOwn], notes[kOther];
  __shared__ uint8_t kept[kSplit ? 1 : Bits::kSize];
  T* const q_tile = dynamic_shared<T>();
  const auto k_stage = [&](int s) { return q_tile + Tile::kOwnSize + s * 2 * Tile::kOtherSize; };
  const auto v_stage = [&](int s) { return k_stage(s) + Tile::kOtherSize; };
  const Cover cover = kSplit ? call.actual_cover() : call.cover;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Tile::kWarpRows;
  float* const scratch = reinterpret_cast<float*>(k_stage(Tile::kStages)) +  // of the warp
                         (Tile::kTensor ? 0 : warp_row * Tile::kWeightPitch);

  // Which rows: queries of one head, the heaviest tiles first; or with kSplit row r is query
  // r / group of head r % group among those of a kv head.
  const int64_t block = kSplit ? blockIdx.x / call.splits : int64_t{blockIdx.x};
  const int64_t split = kSplit ? blockIdx.x % call.splits : 0;
  const int64_t splits = kSplit ? call.actual_splits(cover) : 1;
  if (kSplit && split >= splits) return;
  const int64_t tile_index = call.tiles - 1 - block % call.tiles, part = block / call.tiles;
  const int64_t parts = kSplit ? call.heads / call.group : call.heads;
  const int64_t b = part / parts, kv_head = kSplit ? part % parts : part % parts / call.group;
  const auto group = static_cast<int>(kSplit ? call.group : 1);
  const int64_t first_head = kSplit ? kv_head * call.group : part % parts;
  const int first_row = static_cast<int>(tile_index) * kOwn, rows = cover.queries * group;
  const auto query_of = [&](int row) { return (first_row + row) / group; };
  const auto head_of = [&](int row) { return first_head + (first_row + row) % group; };
  const int first_query = query_of(0);
  const int last_query = (first_row + kOwn < rows ? first_row + kOwn - 1 : rows - 1) / group;
  const auto place = [&](int m, int half) { return warp_row + m * 16 + half * 8 + lane / 4; };

  const TokenUnit* const units = cover.units_of(b);
  TileRange wanted;
  if (!kSplit && cover.ids != nullptr) {
    wanted = range_of(units, cover.unit_count, first_query, kOwn);
  }
  Walk<kOther, true> walk{cover.first_key(first_query) / kOther * kOther, cover.end_key(last_query),
                          units, wanted};
  if constexpr (kSplit) {
    const int begin = call.actual_begin(cover) + static_cast<int>(split) * kSplitKeys;
    const int end = begin + kSplitKeys;
    walk.at = walk.at > begin ? walk.at : begin;
    walk.end = walk.end < end ? walk.end : end;
  }
  const auto load = [&](int tile, int stage) {
    const auto key = [&](int row, const Rows<const T>& from) -> const T* {
      const int at = tile + row;
      return at < cover.keys && !cover.masked(b, at) ? from.at(b, at, kv_head) : nullptr;
    };
    copy_rows<Tile, kOther>(k_stage(stage), call.k, call.dim,
                            [&](int row) { return key(row, call.k); });
    copy_rows<Tile, kOther>(v_stage(stage), call.v, call.dim,
                            [&](int row) { return key(row, call.v); });
  };

  copy_rows<Tile, kOwn>(q_tile, call.q, call.dim, [&](int row) -> const T* {
    return first_row + row < rows ? call.q.at(b, query_of(row), head_of(row)) : nullptr;
  });
  for (int row = static_cast<int>(threadIdx.x); row < kOwn; row += Tile::kThreads) {
    own_notes[row] = first_row + row < rows ? cover.id(b, query_of(row)) : 0;
  }
  int low[Tile::kBlocks][2];
  float top[Tile::kBlocks][2], sums[Tile::kBlocks][2];
  float values[Tile::kBlocks][Tile::kDim / 8][4] = {};
#pragma unroll
  for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
    low[i / 2][i % 2] = query_of(place(i / 2, i % 2)) + cover.offset - cover.behind;
    top[i / 2][i % 2] = kLowest;
    sums[i / 2][i % 2] = 0;
  }

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
    Look look = Look::kAll;
    if (!cover.band_holds(first_query, last_query, tile, tile + kOther - 1)) look = Look::kBand;
    if (tile + kOther > cover.keys || !range.all || wanted.least != wanted.most ||
        range.least != range.most) {
      look = Look::kNotes;
      for (int i = static_cast<int>(threadIdx.x); i < kOther; i += Tile::kThreads) {
        const int key = tile + i;
        const bool seen = key < cover.keys && !cover.masked(b, key);
        notes[i] = seen ? cover.id(b, key) : kUnseenOther;
      }
    }
    const auto keys = static_cast<uint64_t>(cover.keys);
    uint64_t element = 0;
    if (!kSplit && call.dropout.active) {
      element = call.dropout.element(b, call.heads, first_head, cover, first_query, tile);
      Bits::template fill<Tile::kThreads>(call.dropout, element, keys, kept);
    }
    __syncthreads();

    float scores[Tile::kBlocks][kOther / 8][4];
    multiply_rows<Tile>(scores, q_tile + warp_row * Tile::kPitch, k_stage(stage), call.dim);
    hide<Tile>(scores, call.scale, look, cover, tile, low, place, own_notes, notes);
    soften<Tile>(scores, top, sums, values);
    if (!kSplit && call.dropout.active) {
#pragma unroll
      for (int i = 0; i < Tile::kBlocks * kOther / 2; ++i) {
        const int m = i / (kOther / 2), n = i / 4 % (kOther / 8), e = i % 4;
        const int key = n * 8 + lane % 4 * 2 + e % 2;
        if (!Bits::at(kept, element, keys, place(m, e / 2), key)) scores[m][n][e] = 0;
      }
    }
    multiply_weights<Tile>(values, scores, v_stage(stage), scratch, call.dim);
    __syncthreads();  // the stage and the notes may change
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

  const bool partial = kSplit && call.partials != nullptr && splits > 1;
  float factors[Tile::kBlocks][2];
#pragma unroll
  for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
    const int m = i / 2, half = i % 2, row = place(m, half);
    float sum = sums[m][half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    factors[m][half] = sum == 0 ? 0.0f : call.dropout.factor / sum;
    if (first_row + row >= rows) continue;
    const int64_t at = (b * call.heads + head_of(row)) * cover.queries + query_of(row);
    if (partial) {
      float* const to = call.partials + (at * call.splits + split) * call.pitch;
#pragma unroll
      for (int n = 0; n < Tile::kDim / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        if (column < call.dim) {
          store_pack(to + column,
                     Pack<float, 2>{{values[m][n][2 * half], values[m][n][2 * half + 1]}});
        }
      }
      if (lane % 4 == 0) {
        store_pack(to + call.pitch - 2, Pack<float, 2>{{top[m][half], sum}});
      }
    } else if (call.lse != nullptr && lane % 4 == 0) {
      call.lse[at] = sum == 0 ? kLowest : (top[m][half] + (log2f(sum) - kLift<T>)) * kLogOf2;
    }
  }
  if (partial) return;
  store_rows<Tile>(values, factors, q_tile + warp_row * Tile::kPitch, call.out.wide, call.dim,
                   [&](int row) -> T* {
                     const int own = warp_row + row;
                     return first_row + own < rows ? call.out.at(b, query_of(own), head_of(own))
                                                   : nullptr;
                   });
}

}  // namespace ds::kernels::cuda
