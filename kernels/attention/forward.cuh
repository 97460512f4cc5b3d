// The forward kernel of attention on a GPU: online softmax of a tile of queries over tiles of keys.
#pragma once

#include <cmath>

#include "kernels/attention/cover.cuh"
#include "kernels/attention/products.cuh"

namespace ds::kernels::cuda {

inline constexpr int kSplitKeys = 256;  // of a block with kSplit: results do not depend on the GPU

template <class T>
struct Forward {
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* lse = nullptr;  // [batch, heads, queries]
  Cover cover;
  Dropout dropout;
  int heads, group;  // group: query heads of a kv head
  int dim;
  bool negative;  // scale: scores change their sign, so that the largest have the largest weights
  float scale;    // of scores, for powers of two; not negative
  int tiles;
  // kSplit: keys from split_begin on; what a row has of a split is at (row * splits + split) *
  // pitch, its values, maximum and sum. Null with one split.
  int split_begin = 0, splits = 1;
  int64_t pitch = 0;
  float* partials = nullptr;
  // kSplit, [batch] or null: how many keys of each sequence lie before its first query. Then the
  // cover, `split_begin` and `splits` are those of the most keys that there may be.
  const int32_t* past = nullptr;

  __device__ __forceinline__ Cover actual_cover(int64_t b) const {
    Cover actual = cover;
    if (past != nullptr) {
      const int most = cover.keys - cover.queries, before = past[b];
      actual.offset = before < 0 ? 0 : before > most ? most : before;
      actual.keys = actual.offset + cover.queries;
    }
    return actual;
  }
  __device__ __forceinline__ int actual_begin(const Cover& actual) const {
    return past == nullptr ? split_begin : actual.first_key(0) / kSplitKeys * kSplitKeys;
  }
  __device__ __forceinline__ int actual_splits(const Cover& actual) const {
    if (past == nullptr) return splits;
    const int keys = actual.end_key(actual.queries - 1) - actual_begin(actual);
    return keys <= kSplitKeys ? 1 : (keys + kSplitKeys - 1) / kSplitKeys;
  }

  explicit Forward(const AttentionProblem& p)
      : dropout(p),
        heads(static_cast<int>(p.heads)),
        group(static_cast<int>(p.heads / p.kv_heads)),
        dim(static_cast<int>(p.head_dim)),
        negative(p.scale < 0),
        scale(std::fabs(p.scale) * kLog2OfE) {}
};

// What is read of a sequence: with kSplit only as many keys as there are.
template <Form kForm, class T>
__device__ __forceinline__ decltype(auto) cover_of(const Forward<T>& call, int b) {
  if constexpr (kForm == Form::kSplit) {
    return call.actual_cover(b);
  } else {
    return (call.cover);
  }
}

// Which rows a block has: queries of one head, the heaviest tiles first; or with kSplit row r is
// query r / group of head r % group among those of a kv head.
template <class Tile, Form kForm>
struct OwnPlace {
  static constexpr bool kSplit = kForm == Form::kSplit;
  int b, kv_head, first_head, split, first_row, rows, group;

  template <class T>
  __device__ __forceinline__ explicit OwnPlace(const Forward<T>& call)
      : group(kSplit ? call.group : 1) {
    const int block = static_cast<int>(blockIdx.x);
    const int place = kSplit ? block / call.splits : block;
    split = kSplit ? block % call.splits : 0;
    const int tile = call.tiles - 1 - place % call.tiles, part = place / call.tiles;
    const int parts = kSplit ? call.heads / call.group : call.heads;
    b = part / parts;
    kv_head = kSplit ? part % parts : part % parts / call.group;
    first_head = kSplit ? kv_head * call.group : part % parts;
    first_row = tile * Tile::kOwn;
    rows = call.cover.queries * group;
  }
  // Of a row of the tile.
  __device__ __forceinline__ int query_of(int row) const {
    return kSplit ? (first_row + row) / group : first_row + row;
  }
  __device__ __forceinline__ int head_of(int row) const {
    return kSplit ? first_head + (first_row + row) % group : first_head;
  }
  __device__ __forceinline__ bool has(int row) const { return first_row + row < rows; }
  // The query of the last of `count` rows from `row` on that are there.
  __device__ __forceinline__ int last_query(int row, int count) const {
    return query_of(has(row + count - 1) ? row + count - 1 : rows - first_row - 1);
  }
  // The row of the tile that half `half` of block m of a lane's results belongs to.
  static __device__ __forceinline__ int row_of(int m, int half) {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / kWarp * Tile::kWarpRows + m * 16 + half * 8 + thread / 4 % 8;
  }
};

// Makes scores of pairs outside the band and of keys that are not there -inf, for keys from
// first_key on.
template <class Tile, class Place>
__device__ __forceinline__ void mask_band(float (&scores)[Tile::kBlocks][Tile::kStep / 8][4],
                                          const Cover& cover, const Place& own, int first_key) {
  const int first = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
    const int m = i / 2, half = i % 2;
    const int place = own.query_of(own.row_of(m, half)) + cover.offset;
    const int least = place - cover.behind - first, ahead = place + cover.ahead;
    const int most = (ahead < cover.keys ? ahead : cover.keys - 1) - first;
#pragma unroll
    for (int j = 0; j < Tile::kStep / 4; ++j) {
      const int at = j / 2 * 8 + j % 2;
      float& score = scores[m][j / 2][2 * half + j % 2];
      score = at >= least && at <= most ? score : kLowest;
    }
  }
}

// Makes scores of pairs with different segments -inf.
template <class Tile, class Place>
__device__ __forceinline__ void mask_segments(float (&scores)[Tile::kBlocks][Tile::kStep / 8][4],
                                              const Place& own, const int64_t* own_segments,
                                              const int64_t* segments) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
    const int m = i / 2, half = i % 2;
    const int64_t segment = own_segments[own.row_of(m, half)];
#pragma unroll
    for (int n = 0; n < Tile::kStep / 8; ++n) {
      const Pack<int64_t, 2> two = load_pack<int64_t, 2>(segments + n * 8 + 2 * t);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[m][n][2 * half + e];
        score = two.at[e] == segment ? score : kLowest;
      }
    }
  }
}

// Rows of online softmax: their maxima so far, before scaling, and a lane's part of their sums.
template <class Tile>
struct Softmax {
  float top[Tile::kBlocks][2], sums[Tile::kBlocks][2];

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
      top[i / 2][i % 2] = kLowest;
      sums[i / 2][i % 2] = 0;
    }
  }
  // What scaled scores of a row with this maximum are compared with. A row that has seen nothing
  // yet: any finite reference makes all its weights 0.
  static __device__ __forceinline__ float reference(float best, float scale) {
    return best == kLowest ? 0.0f : best * scale;
  }
};

// Larger references, rounded, are too far from the products that fmaf compares them with: scores
// above get the maximum subtracted first.
inline constexpr float kFusedMost = 65536;

// Turns scores into weights relative to the rows' maxima so far, to which it brings sums and
// values.
template <class Tile>
__device__ __forceinline__ void online_softmax(float (&scores)[Tile::kBlocks][Tile::kStep / 8][4],
                                               float scale, Softmax<Tile>& rows,
                                               float (&values)[Tile::kBlocks][Tile::kDim / 8][4]) {
  using T = typename Tile::Type;
  float best[Tile::kBlocks][2], lift[Tile::kBlocks][2];
  bool plain = true;
#pragma unroll
  for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
    const int m = i / 2, half = i % 2;
    float most = rows.top[m][half];
#pragma unroll
    for (int n = 0; n < Tile::kStep / 8; ++n) {
      most = fmaxf(most, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
    }
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    best[m][half] = most;
    const float reference = Softmax<Tile>::reference(most, scale);
    lift[m][half] = kLift<T> - reference;
    plain = plain && most == rows.top[m][half] && fabsf(reference) <= kFusedMost;
  }
  // Maxima seldom change after the first tiles.
  if (__any_sync(kAllLanes, !plain) != 0) {
#pragma unroll
    for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
      const int m = i / 2, half = i % 2;
      const float top = rows.top[m][half], most = best[m][half];
      const float reference = Softmax<Tile>::reference(most, scale);
      const bool fused = fabsf(reference) <= kFusedMost;
      const float shrink =
          top == kLowest ? 0.0f
                         : power_of_two<T>(fused ? top * scale - reference : (top - most) * scale);
      rows.top[m][half] = most;
      rows.sums[m][half] *= shrink;
#pragma unroll
      for (int j = 0; j < Tile::kDim / 4; ++j) values[m][j / 2][2 * half + j % 2] *= shrink;
      if (fused) continue;
      lift[m][half] = kLift<T>;
#pragma unroll
      for (int j = 0; j < Tile::kStep / 4; ++j) scores[m][j / 2][2 * half + j % 2] -= most;
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
    const int m = i / 2, half = i % 2;
#pragma unroll
    for (int j = 0; j < Tile::kStep / 4; ++j) {
      float& score = scores[m][j / 2][2 * half + j % 2];
      score = power_of_two<T>(fmaf(score, scale, lift[m][half]));
      rows.sums[m][half] += score;
    }
  }
}

// Writes a warp's results: the values over their sums and the logarithms of these; or with kSplit
// and several splits, what join_splits makes them of.
template <class Tile, Form kForm, class T>
__device__ __forceinline__ void finish(const Forward<T>& call, const OwnPlace<Tile, kForm>& own,
                                       const Softmax<Tile>& softmax,
                                       const float (&values)[Tile::kBlocks][Tile::kDim / 8][4],
                                       T* own_rows, int splits) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool partial = kForm == Form::kSplit && call.partials != nullptr && splits > 1;
  float factors[Tile::kBlocks][2];
#pragma unroll
  for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
    const int m = i / 2, half = i % 2, row = own.row_of(m, half);
    const float top = softmax.top[m][half];
    const float scaled = top == kLowest ? kLowest : top * call.scale;
    float sum = softmax.sums[m][half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    factors[m][half] = sum == 0 ? 0.0f : call.dropout.factor / sum;
    if (!own.has(row)) continue;
    const int64_t at =
        (int64_t{own.b} * call.heads + own.head_of(row)) * call.cover.queries + own.query_of(row);
    if (partial) {
      float* const to = call.partials + (at * call.splits + own.split) * call.pitch;
#pragma unroll
      for (int n = 0; n < Tile::kDim / 8; ++n) {
        const int column = n * 8 + t * 2;
        if (column < call.dim) {
          store_pack(to + column,
                     Pack<float, 2>{{values[m][n][2 * half], values[m][n][2 * half + 1]}});
        }
      }
      if (t == 0) store_pack(to + call.pitch - 2, Pack<float, 2>{{scaled, sum}});
    } else if (call.lse != nullptr && t == 0) {
      call.lse[at] = sum == 0 ? kLowest : (scaled + (log2f(sum) - kLift<T>)) * kLogOf2;
    }
  }
  if (partial) return;
  store_rows<Tile>(values, factors, own_rows, call.out.wide, call.dim, [&](int row) -> T* {
    const int at = own.row_of(0, 0) / 8 * 8 + row;
    return own.has(at) ? call.out.at(own.b, own.query_of(at), own.head_of(at)) : nullptr;
  });
}

// The tiles of keys that a block visits, from the first on: those of its split.
template <class Tile, Form kForm, class T>
__device__ __forceinline__ Walk<Tile::kOther, true, kForm != Form::kPlain> walk_of(
    const Forward<T>& call, const OwnPlace<Tile, kForm>& own, const Cover& cover, int& first) {
  const int first_query = own.query_of(0);
  Walk<Tile::kOther, true, kForm != Form::kPlain> walk{cover.end_key(own.last_query(0, Tile::kOwn)),
                                                       {}};
  if (kForm == Form::kMasked && cover.ids != nullptr) {
    walk.wanted = range_of(cover, own.b, first_query, Tile::kOwn);
  }
  first = cover.first_key(first_query) / Tile::kOther * Tile::kOther;
  if constexpr (kForm == Form::kSplit) {
    const int begin = call.actual_begin(cover) + own.split * kSplitKeys;
    const int end = begin + kSplitKeys;
    first = first > begin ? first : begin;
    walk.end = walk.end < end ? walk.end : end;
  }
  first = walk.from(cover, own.b, first);
  return walk;
}

template <class Tile>
__device__ __forceinline__ void negate(float (&scores)[Tile::kBlocks][Tile::kStep / 8][4]) {
#pragma unroll
  for (int i = 0; i < Tile::kBlocks * Tile::kStep / 2; ++i) {
    float& score = scores[i / (Tile::kStep / 2)][i / 4 % (Tile::kStep / 8)][i % 4];
    score = -score;
  }
}

// A warp's part of a block: what every step reads, and the sums.
template <class Tile, Form kForm, class T>
struct ForwardSums {
  using Bits = KeptBits<Tile::kOwn, Tile::kOther>;
  static constexpr int kStep = Tile::kStep;

  const Forward<T>& call;
  const OwnPlace<Tile, kForm>& own;
  const Cover& cover;
  const int64_t *const own_segments, *const segments;
  const uint8_t* const kept;
  const SharedTiles<Tile, 1>& shared;
  const int warp_row;
  const bool warp_has = own.has(warp_row);
  const int warp_first = own.query_of(warp_row);
  const int warp_last = own.query_of(warp_row + Tile::kWarpRows - 1);
  Softmax<Tile> softmax = {};
  float values[Tile::kBlocks][Tile::kDim / 8][4] = {};

  // The first random element of a tile, and which pairs of the tile are kept.
  __device__ __forceinline__ uint64_t element(int tile) const {
    return call.dropout.element(own.b, own.first_head, cover, own.query_of(0), tile);
  }
  __device__ __forceinline__ void draw(int tile, uint8_t* to) const {
    Bits::template fill<Tile::kThreads>(call.dropout, element(tile),
                                        static_cast<uint64_t>(cover.keys), to);
  }
  __device__ __forceinline__ void drop(float (&scores)[Tile::kBlocks][kStep / 8][4], int tile,
                                       int step) const {
    const uint64_t first = element(tile), keys = static_cast<uint64_t>(cover.keys);
#pragma unroll
    for (int i = 0; i < Tile::kBlocks * kStep / 2; ++i) {
      const int m = i / (kStep / 2), n = i / 4 % (kStep / 8), e = i % 4;
      const int column = step + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
      if (!Bits::at(kept, first, keys, own.row_of(m, e / 2), column)) scores[m][n][e] = 0;
    }
  }
  // Adds what kStep keys from `step` of the tile on give.
  template <class QRows>
  __device__ __forceinline__ void add(const QRows& q, const KeyStage& from, int step) {
    const int key = from.tile + step;
    if (!warp_has || key >= cover.keys ||
        cover.band_hides(warp_first, warp_last, key, key + kStep - 1)) {
      return;
    }
    float scores[Tile::kBlocks][kStep / 8][4];
    multiply_rows<Tile>(scores, q, shared.first(from.stage) + step * Tile::kPitch, call.dim);
    if (call.negative) negate<Tile>(scores);
    if (key + kStep > cover.keys ||
        !cover.band_holds(warp_first, warp_last, key, key + kStep - 1)) {
      mask_band<Tile>(scores, cover, own, key);
    }
    if (from.with_segments) mask_segments<Tile>(scores, own, own_segments, segments + step);
    online_softmax<Tile>(scores, call.scale, softmax, values);
    if (from.drops) drop(scores, from.tile, step);
    multiply_weights<Tile>(values, scores, shared.second(from.stage) + step * Tile::kPitch,
                           shared.weights(warp_row), call.dim);
  }
};

template <class Tile, Form kForm, class T>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident) attend(Forward<T> call) {
  constexpr int kOwn = Tile::kOwn, kOther = Tile::kOther;
  constexpr bool kSplit = kForm == Form::kSplit, kMasked = kForm == Form::kMasked;
  constexpr bool kPlain = kForm == Form::kPlain;
  using Sums = ForwardSums<Tile, kForm, T>;
  alignas(16) __shared__ int64_t own_segments[kPlain ? 1 : kOwn];
  alignas(16) __shared__ int64_t segments[kPlain ? 2 : kOther];
  __shared__ uint8_t kept[kMasked ? Sums::Bits::kSize : 1];
  const SharedTiles<Tile, 1> shared;
  const OwnPlace<Tile, kForm> own(call);
  const auto& cover = cover_of<kForm>(call, own.b);
  const int splits = kSplit ? call.actual_splits(cover) : 1;
  if (kSplit && own.split >= splits) return;
  const int b = own.b;
  constexpr bool kFromOneLane = !kSplit && Tile::kDim == 64;
  const int warp_row = warp_of<kFromOneLane>() * Tile::kWarpRows;

  int tile;
  const auto walk = walk_of<Tile, kForm>(call, own, cover, tile);
  const auto load = [&](int at, int stage) {
    copy_tokens<Tile, kOther, kPlain>(
        shared.first(stage), call.k, call.v, {b, own.kv_head, at}, call.dim,
        [&](int key) { return key < cover.keys && (kPlain || !cover.masked(b, key)); });
  };
  copy_rows<Tile, kOwn>(shared.own, call.q, call.dim, [&](int row) -> const T* {
    return own.has(row) ? call.q.at(b, own.query_of(row), own.head_of(row)) : nullptr;
  });
  copy_commit();
  // Tiles that follow each other take the stages in turn.
  const auto stage_of = [](int at) { return at / kOther % Tile::kStages; };
  const int first_stage = kPlain ? stage_of(tile) : 0;
  if (tile >= 0) load(tile, first_stage);
  copy_commit();
  for (int row = static_cast<int>(threadIdx.x); !kPlain && row < kOwn; row += Tile::kThreads) {
    own_segments[row] = own.has(row) ? cover.id(b, own.query_of(row)) : 0;
  }
  Sums sums{.call = call,
            .own = own,
            .cover = cover,
            .own_segments = own_segments,
            .segments = segments,
            .kept = kept,
            .shared = shared,
            .warp_row = warp_row};
  copy_wait<1>();
  __syncthreads();
  const OwnRows<Tile, Tile::kKeepsFirst> q(shared.own + warp_row * Tile::kPitch);

  for (int turn = first_stage; tile >= 0;) {
    const int stage = kPlain ? stage_of(tile) : turn;
    bool with_segments = false;
    if constexpr (!kPlain) {
      with_segments = find_key_segments<Tile>(cover, b, tile, walk.wanted, segments);
    }
    const bool drops = kMasked && call.dropout.active;
    if (drops) sums.draw(tile, kept);
    copy_wait<0>();
    __syncthreads();  // the tile is there, and nobody reads the other stage any more
    const int next = walk.from(cover, b, tile + kOther);
    start_next<Tile>(next, stage, load);
    const KeyStage from{tile, stage, with_segments, drops};
#pragma unroll 1
    for (int step = 0; step < kOther; step += Tile::kStep) sums.add(q, from, step);
    turn ^= Tile::kStages - 1;
    leave_tile<Tile>(with_segments || drops, next, load);
    // Found once more, it needs no register meanwhile.
    tile = kPlain ? walk.from(cover, b, tile + kOther) : next;
  }
  copy_wait<0>();
  __syncthreads();
  finish<Tile, kForm>(call, own, sums.softmax, sums.values, shared.own + warp_row * Tile::kPitch,
                      splits);
}

}  // namespace ds::kernels::cuda
