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
  HeadRows<const T> q, k, v, out, dout;
  HeadRows<T> dq, dk, dv;
  const float* lse = nullptr;
  float* delta = nullptr;  // [batch, heads, queries]: dout . out
  Cover cover;
  Dropout dropout;
  int heads, kv_heads, group;  // group: query heads of a kv head
  int dim;
  float scale, power_scale;  // of scores; of scores for powers of two
  int tiles = 0;

  explicit Backward(const AttentionProblem& p)
      : dropout(p),
        heads(static_cast<int>(p.heads)),
        kv_heads(static_cast<int>(p.kv_heads)),
        group(static_cast<int>(p.heads / p.kv_heads)),
        dim(static_cast<int>(p.head_dim)),
        scale(p.scale),
        power_scale(p.scale * kLog2OfE) {}
};

// The logarithm of a row's sum for powers of two.
__device__ __forceinline__ float binary_log(float lse) { return lse * kLog2OfE; }

// Calls use(m, n, e) for every one of a lane's scores.
template <class Tile, class Use>
__device__ __forceinline__ void for_scores(const Use& use) {
#pragma unroll
  for (int i = 0; i < Tile::kBlocks * Tile::kStep / 2; ++i) {
    use(i / (Tile::kStep / 2), i / 4 % (Tile::kStep / 8), i % 4);
  }
}

// Turns a lane's scores into lifted weights and the gradients of weights into those of scores
// before scaling. stats(n)(m, e) gives the row's logarithm for powers of two and delta.
template <class Tile, bool kGradients, class Stats>
__device__ __forceinline__ void softmax_weights(float (&scores)[Tile::kBlocks][Tile::kStep / 8][4],
                                                float (&grads)[Tile::kBlocks][Tile::kStep / 8][4],
                                                float scale, const Stats& stats) {
  using T = typename Tile::Type;
#pragma unroll
  for (int n = 0; n < Tile::kStep / 8; ++n) {
    const auto row_of = stats(n);
#pragma unroll
    for (int i = 0; i < 4 * Tile::kBlocks; ++i) {
      const Pack<float, 2> row = row_of(i / 4, i % 4);
      float& score = scores[i / 4][n][i % 4];
      const float weight = power_of_two<T>(fmaf(score, scale, -row.at[0]));
      score = weight * (1 << kLift<T>);
      if constexpr (kGradients) {
        float& grad = grads[i / 4][n][i % 4];
        grad = weight * (grad - row.at[1]);
      }
    }
  }
}

// Makes weights and gradients 0 where seen(m, n, e) is false.
template <class Tile, bool kGradients, class Seen>
__device__ __forceinline__ void apply_mask(float (&weights)[Tile::kBlocks][Tile::kStep / 8][4],
                                           float (&grads)[Tile::kBlocks][Tile::kStep / 8][4],
                                           const Seen& seen) {
  for_scores<Tile>([&](int m, int n, int e) {
    const bool shown = seen(m, n, e);
    weights[m][n][e] = shown ? weights[m][n][e] : 0.0f;
    if constexpr (kGradients) grads[m][n][e] = shown ? grads[m][n][e] : 0.0f;
  });
}

// Makes values 0 that dropout does not keep, and multiplies the others.
template <class Tile, class Kept>
__device__ __forceinline__ void drop(float (&values)[Tile::kBlocks][Tile::kStep / 8][4],
                                     float factor, const Kept& kept) {
  for_scores<Tile>([&](int m, int n, int e) {
    values[m][n][e] = kept(m, n, e) ? values[m][n][e] * factor : 0.0f;
  });
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
  const auto b = static_cast<int>(part / call.heads), head = static_cast<int>(part % call.heads);
  const T* const out = call.out.at(b, static_cast<int>(query), head);
  const T* const dout = call.dout.at(b, static_cast<int>(query), head);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0;
  for (int d = lane; d < call.dim; d += kWarp) sum = fmaf(widen(out[d]), widen(dout[d]), sum);
  sum = warp_sum(sum);
  if (lane == 0) call.delta[row] = sum;
}

// The row of a block's tile that half `half` of block m of a lane's results belongs to.
template <class Tile>
__device__ __forceinline__ int own_row(int m, int half) {
  const int thread = static_cast<int>(threadIdx.x);
  return thread / kWarp * Tile::kWarpRows + m * 16 + half * 8 + thread / 4 % 8;
}
// The row of the other tile, from the step's first on, that element e of block n belongs to.
__device__ __forceinline__ int other_row(int n, int e) {
  return n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
}

// What a block of key_gradients makes: wide heads leave registers for one of the two.
enum class Part { kBoth, kKeys, kValues };

// The tiles of queries that a block of key_gradients visits, for every query head in turn.
template <class Tile, bool kLooks>
struct QueryTiles {
  Walk<Tile::kOther, false, kLooks> walk;
  int b, start, head, end_head;

  // The first at or after `at`, of this head or those after it; or -1.
  __device__ __forceinline__ int from(const Cover& cover, int at) {
    int tile = walk.from(cover, b, at);
    if (tile >= 0 || head + 1 >= end_head) return tile;
    ++head;
    return walk.from(cover, b, start);
  }
};

// The tile of keys that a block of key_gradients has.
template <class Tile>
struct KeyPlace {
  int b, kv_head, first_key;

  template <class T>
  __device__ __forceinline__ explicit KeyPlace(const Backward<T>& call) {
    const int block = static_cast<int>(blockIdx.x), part = block / call.tiles;
    b = part / call.kv_heads;
    kv_head = part % call.kv_heads;
    first_key = block % call.tiles * Tile::kOwn;
  }
};

template <class Tile>
__device__ __forceinline__ void find_own_segments(const Cover& cover, const KeyPlace<Tile>& place,
                                                  int64_t* segments) {
  for (int row = static_cast<int>(threadIdx.x); row < Tile::kOwn; row += Tile::kThreads) {
    const int key = place.first_key + row;
    const bool seen = key < cover.keys && !cover.masked(place.b, key);
    segments[row] = seen ? cover.id(place.b, key) : kUnseenOwn;
  }
}

// The queries that see the keys; `own` is what the keys are.
template <class Tile, bool kMasked, class T>
__device__ __forceinline__ QueryTiles<Tile, kMasked> query_tiles(const Backward<T>& call,
                                                                 const KeyPlace<Tile>& place,
                                                                 const TileRange& own) {
  const Cover& cover = call.cover;
  const int end_key = place.first_key + Tile::kOwn;
  const int last_key = (end_key < cover.keys ? end_key : cover.keys) - 1;
  const auto query = [&](int at) { return at < 0 ? 0 : at > cover.queries ? cover.queries : at; };
  const int end_query = query(last_key - cover.offset + cover.behind + 1);
  const int start = query(place.first_key - cover.offset - cover.ahead);
  return {{own.any ? end_query : 0, own},
          place.b,
          start / Tile::kOther * Tile::kOther,
          place.kv_head * call.group,
          (place.kv_head + 1) * call.group};
}

// Starts the copies of a tile of queries: rows of q and dout, logarithms and deltas.
template <class Tile, Form kForm, class T>
__device__ __forceinline__ void load_queries(const Backward<T>& call, int b, int head, int tile,
                                             T* to, float* logs, float* deltas) {
  const Cover& cover = call.cover;
  copy_tokens<Tile, Tile::kOther, kForm == Form::kPlain>(
      to, call.q, call.dout, {b, head, tile}, call.dim, [&](int at) { return at < cover.queries; });
  const float* const lse = call.lse + (int64_t{b} * call.heads + head) * cover.queries;
  const float* const delta = call.delta + (lse - call.lse);
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kOther; i += Tile::kThreads) {
    const int at = tile + i;
    const bool there = at < cover.queries;
    copy_word_async(logs + i, lse + (there ? at : 0), there);
    copy_word_async(deltas + i, delta + (there ? at : 0), there);
  }
}

// Whether segments or key masks hide pairs of the keys and a tile of queries; then the queries'
// segments.
template <class Tile>
__device__ __forceinline__ bool find_query_segments(const Cover& cover, int b, int tile,
                                                    const TileRange& own, int64_t* segments) {
  bool hides = !own.all;
  if (cover.ids != nullptr) {
    const TileRange range = range_of(cover, b, tile, Tile::kOther);
    hides = hides || own.least != own.most || range.least != range.most;
  }
  for (int i = static_cast<int>(threadIdx.x); hides && i < Tile::kOther; i += Tile::kThreads) {
    segments[i] = tile + i < cover.queries ? cover.id(b, tile + i) : kUnseenOther;
  }
  return hides;
}

// What steps read of a tile of queries of a head, and what hides pairs of it.
template <class T>
struct QueryStage {
  const T *q, *dout;
  const float *logs, *deltas;
  int tile, head;
  bool with_segments, drops;
};

// A warp's part of a block of key_gradients: what every step reads, and the sums.
template <class Tile, Form kForm, Part kPart, class T>
struct KeySums {
  using Bits = KeptBits<Tile::kOther, Tile::kOwn>;
  static constexpr bool kWithKeys = kPart != Part::kValues, kWithValues = kPart != Part::kKeys;
  static constexpr int kStep = Tile::kStep;

  const Backward<T>& call;
  const int b, first_key, warp_first, warp_last;
  const int64_t *const own_segments, *const segments;
  const uint8_t* const kept;
  float* const scratch;
  float dk[Tile::kBlocks][Tile::kDim / 8][4] = {}, dv[Tile::kBlocks][Tile::kDim / 8][4] = {};

  // The first random element of a tile, and which pairs of the tile are kept.
  __device__ __forceinline__ uint64_t element(int head, int tile) const {
    return call.dropout.element(b, head, call.cover, tile, first_key);
  }
  __device__ __forceinline__ void draw(int head, int tile, uint8_t* to) const {
    Bits::template fill<Tile::kThreads>(call.dropout, element(head, tile),
                                        static_cast<uint64_t>(call.cover.keys), to);
  }
  // Adds the products with kStep queries from `step` of the tile on.
  template <class KRows, class VRows>
  __device__ __forceinline__ void add(const KRows& k_rows, const VRows& v_rows,
                                      const QueryStage<T>& from, int step) {
    const Cover& cover = call.cover;
    const int at = from.tile + step;
    if (at >= cover.queries || cover.band_hides(at, at + kStep - 1, warp_first, warp_last)) return;
    const T* const q = from.q + step * Tile::kPitch;
    const T* const dout = from.dout + step * Tile::kPitch;
    const auto keys = static_cast<uint64_t>(cover.keys);
    const auto is_kept = [&](int m, int n, int e) {
      return Bits::at(kept, element(from.head, from.tile), keys, step + other_row(n, e),
                      own_row<Tile>(m, e / 2));
    };
    float weights[Tile::kBlocks][kStep / 8][4], grads[Tile::kBlocks][kStep / 8][4];
    multiply_rows<Tile>(weights, k_rows, q, call.dim);
    if constexpr (kWithKeys) {
      multiply_rows<Tile>(grads, v_rows, dout, call.dim);
      if (from.drops) drop<Tile>(grads, call.dropout.factor, is_kept);
    }
    softmax_weights<Tile, kWithKeys>(weights, grads, call.power_scale, [&](int n) {
      const auto log = load_pack<float, 2>(from.logs + step + other_row(n, 0));
      const auto delta = load_pack<float, 2>(from.deltas + step + other_row(n, 0));
      return [=](int, int e) {
        return Pack<float, 2>{{binary_log(log.at[e % 2]), delta.at[e % 2]}};
      };
    });
    mask(weights, grads, from, step);
    if constexpr (kWithValues) {
      if (from.drops) drop<Tile>(weights, 1, is_kept);
      multiply_weights<Tile>(dv, weights, dout, scratch, call.dim);
    }
    if constexpr (kWithKeys) multiply_weights<Tile>(dk, grads, q, scratch, call.dim);
  }

  __device__ __forceinline__ void mask(float (&weights)[Tile::kBlocks][kStep / 8][4],
                                       float (&grads)[Tile::kBlocks][kStep / 8][4],
                                       const QueryStage<T>& from, int step) const {
    const Cover& cover = call.cover;
    const int at = from.tile + step;
    if (at + kStep > cover.queries ||
        !cover.band_holds(at, at + kStep - 1, warp_first, warp_last)) {
      const int place = first_key - cover.offset;
      const auto span = static_cast<unsigned>(cover.behind + cover.ahead);
      apply_mask<Tile, kWithKeys>(weights, grads, [&](int m, int n, int e) {
        const int other = at + other_row(n, e), row = place + own_row<Tile>(m, e / 2);
        return other < cover.queries && static_cast<unsigned>(row - other + cover.behind) <= span;
      });
    }
    if (from.with_segments) {
      apply_mask<Tile, kWithKeys>(weights, grads, [&](int m, int n, int e) {
        return own_segments[own_row<Tile>(m, e / 2)] == segments[step + other_row(n, e)];
      });
    }
  }
};

// Writes a warp's sums times a factor, by way of its rows of an own tile.
template <class Tile, class T>
__device__ __forceinline__ void store_keys(const Backward<T>& call, const KeyPlace<Tile>& place,
                                           int warp_row,
                                           const float (&sums)[Tile::kBlocks][Tile::kDim / 8][4],
                                           float factor, T* through, const HeadRows<T>& to) {
  float factors[Tile::kBlocks][2];
  fill_factors(factors, factor);
  store_rows<Tile>(sums, factors, through + warp_row * Tile::kPitch, to.wide, call.dim,
                   [&](int row) -> T* {
                     const int key = place.first_key + warp_row + row;
                     return key < call.cover.keys ? to.at(place.b, key, place.kv_head) : nullptr;
                   });
}

template <class Tile, Form kForm, Part kPart, class T>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident) key_gradients(Backward<T> call) {
  constexpr int kOwn = Tile::kOwn, kOther = Tile::kOther;
  constexpr bool kMasked = kForm == Form::kMasked;
  using Sums = KeySums<Tile, kForm, kPart, T>;
  static_assert(kOwn % kUnitTokens == 0);
  __shared__ int64_t own_segments[kMasked ? kOwn : 1], segments[kMasked ? kOther : 1];
  alignas(16) __shared__ float logs[Tile::kStages][kOther], deltas[Tile::kStages][kOther];
  __shared__ uint8_t kept[kMasked ? Sums::Bits::kSize : 1];
  const SharedTiles<Tile, 2> shared;
  const Cover& cover = call.cover;
  const int warp_row = warp_of<true>() * Tile::kWarpRows;

  const KeyPlace<Tile> place(call);
  const int b = place.b, first_key = place.first_key;
  TileRange own;
  if constexpr (kMasked) own = range_of(cover, b, first_key, kOwn);
  QueryTiles<Tile, kMasked> tiles = query_tiles<Tile, kMasked>(call, place, own);
  const auto load = [&](int tile, int stage) {
    load_queries<Tile, kForm>(call, b, tiles.head, tile, shared.first(stage), logs[stage],
                              deltas[stage]);
  };
  copy_tokens<Tile, kOwn, kForm == Form::kPlain>(
      shared.own, call.k, call.v, {b, place.kv_head, first_key}, call.dim,
      [&](int key) { return key < cover.keys && !(kMasked && cover.masked(b, key)); });
  copy_commit();
  int tile = tiles.from(cover, tiles.start), head = tiles.head;
  if (tile >= 0) load(tile, 0);
  copy_commit();
  if constexpr (kMasked) find_own_segments(cover, place, own_segments);

  const int warp_first = first_key + warp_row;
  Sums sums{.call = call,
            .b = b,
            .first_key = first_key,
            .warp_first = warp_first,
            .warp_last = warp_first + Tile::kWarpRows - 1,
            .own_segments = own_segments,
            .segments = segments,
            .kept = kept,
            .scratch = shared.weights(warp_row)};
  copy_wait<1>();
  __syncthreads();
  const OwnRows<Tile, Tile::kKeepsFirst> k_rows(shared.own + warp_row * Tile::kPitch);
  const OwnRows<Tile, Tile::kKeepsSecond> v_rows(shared.second_own() + warp_row * Tile::kPitch);
  for (int stage = 0; tile >= 0;) {
    bool with_segments = false;
    if constexpr (kMasked) with_segments = find_query_segments<Tile>(cover, b, tile, own, segments);
    const bool drops = kMasked && call.dropout.active;
    if (drops) sums.draw(head, tile, kept);
    copy_wait<0>();
    __syncthreads();  // the tile is there, and nobody reads the other stage any more
    const int next = tiles.from(cover, tile + kOther);
    start_next<Tile>(next, stage, load);
    const QueryStage<T> from{.q = shared.first(stage),
                             .dout = shared.second(stage),
                             .logs = logs[stage],
                             .deltas = deltas[stage],
                             .tile = tile,
                             .head = head,
                             .with_segments = with_segments,
                             .drops = drops};
#pragma unroll 1
    for (int step = 0; step < kOther; step += Tile::kStep) sums.add(k_rows, v_rows, from, step);
    stage ^= Tile::kStages - 1;
    leave_tile<Tile>(with_segments || drops, next, load);
    tile = next;
    head = tiles.head;
  }
  copy_wait<0>();
  __syncthreads();

  if constexpr (Sums::kWithKeys) {
    store_keys(call, place, warp_row, sums.dk, call.scale, shared.own, call.dk);
  }
  if constexpr (Sums::kWithValues) {
    const float factor = call.dropout.factor / (1 << kLift<T>);
    store_keys(call, place, warp_row, sums.dv, factor, shared.second_own(), call.dv);
  }
}

// The tile of queries that a block of query_gradients has; the heaviest tiles come first.
template <class Tile>
struct QueryPlace {
  int b, head, kv_head, first_query, last_query;

  template <class T>
  __device__ __forceinline__ explicit QueryPlace(const Backward<T>& call) {
    const int block = static_cast<int>(blockIdx.x), part = block / call.tiles;
    const int queries = call.cover.queries;
    b = part / call.heads;
    head = part % call.heads;
    kv_head = head / call.group;
    first_query = (call.tiles - 1 - block % call.tiles) * Tile::kOwn;
    const int end = first_query + Tile::kOwn;
    last_query = (end < queries ? end : queries) - 1;
  }
};

// A warp's part of a block of query_gradients: what every step reads, and the sums.
template <class Tile, class T>
struct QuerySums {
  using Bits = KeptBits<Tile::kOwn, Tile::kOther>;
  static constexpr int kStep = Tile::kStep;

  const Backward<T>& call;
  const int b, head, first_query, warp_first, warp_last;
  const int64_t *const own_segments, *const segments;
  const uint8_t* const kept;
  const SharedTiles<Tile, 2>& shared;
  const int warp_row;
  Pack<float, 2> stats[Tile::kBlocks][2] = {};  // logarithm and delta of a lane's rows
  float dq[Tile::kBlocks][Tile::kDim / 8][4] = {};

  // The first random element of a tile, and which pairs of the tile are kept.
  __device__ __forceinline__ uint64_t element(int tile) const {
    return call.dropout.element(b, head, call.cover, first_query, tile);
  }
  __device__ __forceinline__ void draw(int tile, uint8_t* to) const {
    Bits::template fill<Tile::kThreads>(call.dropout, element(tile),
                                        static_cast<uint64_t>(call.cover.keys), to);
  }
  __device__ __forceinline__ void read_stats(int last_query) {
#pragma unroll
    for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
      const int query = first_query + own_row<Tile>(i / 2, i % 2);
      const bool there = query <= last_query;
      const int64_t row = (int64_t{b} * call.heads + head) * call.cover.queries + query;
      stats[i / 2][i % 2] = {
          {there ? binary_log(call.lse[row]) : 0.0f, there ? call.delta[row] : 0.0f}};
    }
  }

  // Adds the products with kStep keys from `step` of the tile on.
  template <class QRows, class DoutRows>
  __device__ __forceinline__ void add(const QRows& q_rows, const DoutRows& dout_rows,
                                      const KeyStage& from, int step) {
    const Cover& cover = call.cover;
    const int at = from.tile + step;
    if (warp_first >= cover.queries || at >= cover.keys ||
        cover.band_hides(warp_first, warp_last, at, at + kStep - 1)) {
      return;
    }
    const T* const k = shared.first(from.stage) + step * Tile::kPitch;
    float weights[Tile::kBlocks][kStep / 8][4], grads[Tile::kBlocks][kStep / 8][4];
    multiply_rows<Tile>(weights, q_rows, k, call.dim);
    multiply_rows<Tile>(grads, dout_rows, shared.second(from.stage) + step * Tile::kPitch,
                        call.dim);
    if (from.drops) {
      drop<Tile>(grads, call.dropout.factor, [&](int m, int n, int e) {
        return Bits::at(kept, element(from.tile), static_cast<uint64_t>(cover.keys),
                        own_row<Tile>(m, e / 2), step + other_row(n, e));
      });
    }
    softmax_weights<Tile, true>(weights, grads, call.power_scale,
                                [&](int) { return [&](int m, int e) { return stats[m][e / 2]; }; });
    if (at + kStep > cover.keys || !cover.band_holds(warp_first, warp_last, at, at + kStep - 1)) {
      const int place = first_query + cover.offset - cover.behind;
      const auto span = static_cast<unsigned>(cover.behind + cover.ahead);
      apply_mask<Tile, true>(weights, grads, [&](int m, int n, int e) {
        const int key = at + other_row(n, e);
        return key < cover.keys &&
               static_cast<unsigned>(key - place - own_row<Tile>(m, e / 2)) <= span;
      });
    }
    if (from.with_segments) {
      apply_mask<Tile, true>(weights, grads, [&](int m, int n, int e) {
        return own_segments[own_row<Tile>(m, e / 2)] == segments[step + other_row(n, e)];
      });
    }
    multiply_weights<Tile>(dq, grads, k, shared.weights(warp_row), call.dim);
  }
};

template <class Tile, Form kForm, class T>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    query_gradients(Backward<T> call) {
  constexpr int kOwn = Tile::kOwn, kOther = Tile::kOther;
  constexpr bool kMasked = kForm == Form::kMasked;
  using Sums = QuerySums<Tile, T>;
  __shared__ int64_t own_segments[kMasked ? kOwn : 1], segments[kMasked ? kOther : 1];
  __shared__ uint8_t kept[kMasked ? Sums::Bits::kSize : 1];
  const SharedTiles<Tile, 2> shared;
  const Cover& cover = call.cover;
  const int warp_row = warp_of<true>() * Tile::kWarpRows;

  const QueryPlace<Tile> place(call);
  const int b = place.b, first_query = place.first_query, last_query = place.last_query;
  Walk<kOther, true, kMasked> walk{cover.end_key(last_query), {}};
  if (kMasked && cover.ids != nullptr) walk.wanted = range_of(cover, b, first_query, kOwn);
  const auto load = [&](int tile, int stage) {
    copy_tokens<Tile, kOther, kForm == Form::kPlain>(
        shared.first(stage), call.k, call.v, {b, place.kv_head, tile}, call.dim,
        [&](int key) { return key < cover.keys && !(kMasked && cover.masked(b, key)); });
  };
  copy_tokens<Tile, kOwn, kForm == Form::kPlain>(shared.own, call.q, call.dout,
                                                 {b, place.head, first_query}, call.dim,
                                                 [&](int query) { return query <= last_query; });
  copy_commit();
  int tile = walk.from(cover, b, cover.first_key(first_query) / kOther * kOther);
  // Tiles that follow each other take the stages in turn.
  const auto stage_of = [](int at) { return at / kOther % Tile::kStages; };
  const int first_stage = kMasked ? 0 : stage_of(tile);
  if (tile >= 0) load(tile, first_stage);
  copy_commit();
  for (int row = static_cast<int>(threadIdx.x); kMasked && row < kOwn; row += Tile::kThreads) {
    own_segments[row] = first_query + row <= last_query ? cover.id(b, first_query + row) : 0;
  }
  const int warp_first = first_query + warp_row;
  Sums sums{.call = call,
            .b = b,
            .head = place.head,
            .first_query = first_query,
            .warp_first = warp_first,
            .warp_last = warp_first + Tile::kWarpRows - 1,
            .own_segments = own_segments,
            .segments = segments,
            .kept = kept,
            .shared = shared,
            .warp_row = warp_row};
  sums.read_stats(last_query);
  copy_wait<1>();
  __syncthreads();
  const OwnRows<Tile, Tile::kKeepsFirst> q_rows(shared.own + warp_row * Tile::kPitch);
  const OwnRows<Tile, Tile::kKeepsSecond> dout_rows(shared.second_own() + warp_row * Tile::kPitch);
  for (int turn = first_stage; tile >= 0;) {
    const int stage = kMasked ? turn : stage_of(tile);
    bool with_segments = false;
    if constexpr (kMasked) {
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
    for (int step = 0; step < kOther; step += Tile::kStep) sums.add(q_rows, dout_rows, from, step);
    turn ^= Tile::kStages - 1;
    leave_tile<Tile>(with_segments || drops, next, load);
    // Found once more, it needs no register meanwhile.
    tile = kMasked ? next : walk.from(cover, b, tile + kOther);
  }
  copy_wait<0>();
  __syncthreads();
  float factors[Tile::kBlocks][2];
  fill_factors(factors, call.scale);
  store_rows<Tile>(sums.dq, factors, shared.own + warp_row * Tile::kPitch, call.dq.wide, call.dim,
                   [&](int row) -> T* {
                     const int query = first_query + warp_row + row;
                     return query <= last_query ? call.dq.at(b, query, place.head) : nullptr;
                   });
}

}  // namespace ds::kernels::cuda
