// Attention backward: probabilities are recomputed tile by tile from the stored log-sum-exp. A work
// item owns its sums of dk and dv; dq of a query block is complete when its keys are through.
#include "base/thread_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/visibility.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_backward_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <cmath>

#include "kernels/attention/gemm-inl.h"
#include "kernels/attention/pack-inl.h"
#include "kernels/attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {

// From scores and d out . v: scores become the probabilities that multiplied v, dscores the
// gradient of the scaled scores.
HWY_NOINLINE inline void gradient_of_scores(const Visible& see, const float* lse, const float* dots,
                                            float* scores, float* dscores) {
  const DF f;
  for (int n = 0; n < see.vectors; ++n) {
    const VF log_sum = hn::Load(f, lse + n * kLanes), dot = hn::Load(f, dots + n * kLanes);
    for (int64_t row = 0; row < see.rows[n]; ++row) {
      float* at = scores + row * kGroup + n * kLanes;
      float* dat = dscores + row * kGroup + n * kLanes;
      const VF weight = exp2(hn::Sub(hn::Load(f, at), log_sum));
      hn::Store(weight, f, at);
      hn::Store(hn::Mul(weight, hn::Sub(hn::Load(f, dat), dot)), f, dat);
    }
  }
}

// What drops weights of a tile; `bits` is scratch.
struct TileDropout {
  const TileBits& random;
  float keep_scale;
  uint64_t first_element;
  int64_t keys;
  uint32_t* bits;
};

// The same with dropped weights.
HWY_NOINLINE inline void gradient_of_dropped_scores(const Visible& see, const float* lse,
                                                    const float* dots, const TileDropout& dropout,
                                                    float* scores, float* dscores) {
  const DF f;
  const VF scale = hn::Set(f, dropout.keep_scale);
  const uint64_t lane_step = static_cast<uint64_t>(dropout.keys);
  uint32_t* const bits = dropout.bits;
  for (int n = 0; n < see.vectors; ++n) {
    dropout.random.fill(dropout.first_element + static_cast<uint64_t>(n * kLanes) * lane_step,
                        lane_step, see.rows[n], bits);
    const VF log_sum = hn::Load(f, lse + n * kLanes), dot = hn::Load(f, dots + n * kLanes);
    for (int64_t row = 0; row < see.rows[n]; ++row) {
      float* at = scores + row * kGroup + n * kLanes;
      float* dat = dscores + row * kGroup + n * kLanes;
      const VF weight = exp2(hn::Sub(hn::Load(f, at), log_sum));
      const VF factor = dropout.random.kept(scale, bits + row * kLanes);
      hn::Store(hn::Mul(weight, factor), f, at);
      hn::Store(hn::Mul(weight, hn::MulSub(hn::Load(f, dat), factor, dot)), f, dat);
    }
  }
}

// What one query block needs, ready for the tiles.
struct QueryTiles {
  float *q, *dout;        // rows: q * scale, dout
  float *qt, *dot, *dqt;  // groups: q * scale * log2(e), dout, and the sums of dq / scale
  float *lse, *dots;      // log-sum-exp in units of log 2, and d out . out
};

template <class T>
HWY_INLINE void load_queries(const AttentionBackward<T>& call, int64_t b, int64_t h,
                             int64_t first_query, int64_t queries, float* out_rows,
                             const QueryTiles& to) {
  const AttentionProblem& p = call.p;
  const int64_t dim = p.head_dim, padded = padded_dim(p);
  const int64_t value_dim = p.value_size(), padded_value = padded_values(p);
  const DF f;
  load_rows(call.q.at(b, first_query, h), call.q.token, queries, dim, padded, p.scale * kLog2E,
            out_rows);
  rows_to_lanes(out_rows, queries, padded, to.qt);
  load_rows(call.q.at(b, first_query, h), call.q.token, queries, dim, padded, p.scale, to.q);
  load_rows(call.g.dout.at(b, first_query, h), call.g.dout.token, queries, value_dim, padded_value,
            1.0f, to.dout);
  rows_to_lanes(to.dout, queries, padded_value, to.dot);
  load_rows(call.g.out.at(b, first_query, h), call.g.out.token, queries, value_dim, padded_value,
            1.0f, out_rows);
  const float* lse = call.g.lse + (b * p.heads + h) * p.queries + first_query;
  for (int64_t i = 0; i < queries; ++i) {
    VF sum = hn::Zero(f);
    for (int64_t d = 0; d < padded_value; d += kLanes) {
      sum = hn::MulAdd(hn::Load(f, out_rows + i * padded_value + d),
                       hn::Load(f, to.dout + i * padded_value + d), sum);
    }
    to.dots[i] = simd::sum_of_lanes(f, sum);
    // A query that sees nothing must get weights of 0, not exp(-inf + inf).
    to.lse[i] = lse[i] == kMinusInfinity ? -kMinusInfinity : lse[i] * kLog2E;
  }
  for (int64_t i = queries; i < kQueryBlock; ++i) {
    to.dots[i] = 0;
    to.lse[i] = -kMinusInfinity;
  }
  std::fill(to.dqt, to.dqt + kQueryBlock * padded, 0.0f);
}

// Of all keys of a kv head.
struct KeySums {
  float *dk, *dv;
};

// Adds one pair of (query head, query block) to the sums and writes its dq.
template <class T>
void backward_block(const AttentionBackward<T>& call, const BackwardLayout& layout,
                    const TileBits& dropout, const SegmentRange* ranges, const QueryPlace& place,
                    float* scratch, const KeySums& sums) {
  const AttentionProblem& p = call.p;
  const int64_t b = place.b, h = place.h, first_query = place.first;
  const Band band(p);
  const int64_t dim = p.head_dim, padded = padded_dim(p), kv_head = h / (p.heads / p.kv_heads);
  const int64_t padded_value = padded_values(p);
  const int64_t queries = std::min(kQueryBlock, p.queries - first_query);
  const QueryTiles tiles{scratch + layout.q,
                         scratch + layout.dout,
                         scratch + layout.qt,
                         scratch + layout.dot,
                         scratch + layout.dqt,
                         scratch + layout.stats,
                         scratch + layout.stats + kQueryBlock};
  float* rows = scratch + layout.rows;
  float* keys_tile = scratch + layout.k;
  float* values_tile = scratch + layout.v;
  float* scores = scratch + layout.scores;
  float* dscores = scratch + layout.dscores;
  uint32_t* bits = reinterpret_cast<uint32_t*>(scratch + layout.bits);
  const float keep_scale = static_cast<float>(1 / (1 - p.dropout));

  load_queries(call, b, h, first_query, queries, rows, tiles);
  QuerySegments segments;
  segments.load(p, b, first_query, queries);
  for (KeyTiles tile(p, band, ranges, b, first_query, queries, segments.all); tile.next();) {
    const int64_t first_key = tile.first_key, keys = tile.keys;
    load_keys<T>({call.k, TokenBlocks(), b, first_key, keys, kv_head}, keys, tile.mask, dim, padded,
                 keys_tile);
    load_keys<T>({call.v, TokenBlocks(), b, first_key, keys, kv_head}, keys, tile.mask,
                 p.value_size(), padded_value, values_tile);
    for (int64_t lane = 0; lane < queries; lane += kGroup) {
      if (tile.segments != nullptr && !segments.groups[lane / kGroup].meets(tile.range)) continue;
      const int64_t first = first_query + lane, count = std::min(kGroup, queries - lane);
      const Visible see = visible_keys(band, first, count, first_key, keys);
      if (see.most() == 0) continue;
      scores_tile(see, dim, padded, keys_tile, tiles.qt + lane * padded, scores);
      mask_tile(see, band, tile, segments, first, lane, scores);
      scores_tile(see, p.value_size(), padded_value, values_tile, tiles.dot + lane * padded_value,
                  dscores);
      if (p.dropout > 0) {
        const uint64_t element = p.row_element(b, h, first) + static_cast<uint64_t>(first_key);
        gradient_of_dropped_scores(see, tiles.lse + lane, tiles.dots + lane,
                                   {dropout, keep_scale, element, p.keys, bits}, scores, dscores);
      } else {
        gradient_of_scores(see, tiles.lse + lane, tiles.dots + lane, scores, dscores);
      }
      add_over_queries(see, count, padded_value, scores, tiles.dout + lane * padded_value,
                       sums.dv + first_key * padded_value);
      add_over_queries(see, count, padded, dscores, tiles.q + lane * padded,
                       sums.dk + first_key * padded);
      add_over_keys(see, round_up(dim, kRowPad), padded, keys_tile, dscores,
                    tiles.dqt + lane * padded);
    }
  }
  lanes_to_rows(tiles.dqt, queries, padded, rows);
  const DF f;
  const VF scale = hn::Set(f, p.scale);
  for (int64_t i = 0; i < queries * padded; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(f, rows + i), scale), f, rows + i);
  }
  store_rows(rows, padded, queries, dim, call.g.dq.token, call.g.dq.at(b, first_query, h));
}

template <class T>
HWY_INLINE void store_sums(const AttentionBackward<T>& call, int64_t b, int64_t kv_head,
                           int64_t first_key, int64_t keys, const float* dk_sums,
                           const float* dv_sums) {
  const int64_t dim = call.p.head_dim, padded = padded_dim(call.p);
  const int64_t padded_value = padded_values(call.p);
  store_rows(dk_sums + first_key * padded, padded, keys, dim, call.g.dk.token,
             call.g.dk.at(b, first_key, kv_head));
  store_rows(dv_sums + first_key * padded_value, padded_value, keys, call.p.value_size(),
             call.g.dv.token, call.g.dv.at(b, first_key, kv_head));
}

// Adds the parts of a tile of keys in order into the first and writes it.
template <class T>
void combine_parts(const AttentionBackward<T>& call, const BackwardPlan& plan, int64_t kv_item,
                   int64_t first_key, float* all_sums) {
  const AttentionProblem& p = call.p;
  const DF f;
  const int64_t keys = std::min(kKeyTile, p.keys - first_key);
  float* sums = all_sums + kv_item * plan.parts * plan.sums;
  for (const bool of_values : {false, true}) {
    const int64_t padded = of_values ? padded_values(p) : padded_dim(p);
    float* to = sums + (of_values ? plan.key_sums : 0) + first_key * padded;
    for (int64_t i = 0; i < keys * padded; i += kLanes) {
      VF sum = hn::Load(f, to + i);
      for (int64_t part = 1; part < plan.parts; ++part) {
        sum = hn::Add(sum, hn::Load(f, to + part * plan.sums + i));
      }
      hn::Store(sum, f, to + i);
    }
  }
  store_sums(call, kv_item / p.kv_heads, kv_item % p.kv_heads, first_key, keys, sums,
             sums + plan.key_sums);
}

template <class T>
void backward(ThreadPool& pool, const AttentionBackward<T>& call) {
  const AttentionProblem& p = call.p;
  const BackwardLayout layout(p);
  const BackwardPlan plan(p);
  const TileBits dropout(p.stream, p.dropout);
  float* all_sums = call.workspace + pool.threads() * layout.size;
  const SegmentRange* ranges = fill_segment_ranges(
      p, all_sums + (plan.parts == 1 ? pool.threads() : plan.items) * plan.sums);
  const int64_t group = p.heads / p.kv_heads;

  run_with_slots(pool, plan.items, [&](int64_t item, int64_t slot) {
    const int64_t kv_item = item / plan.parts, part = item % plan.parts;
    const int64_t b = kv_item / p.kv_heads, kv_head = kv_item % p.kv_heads;
    float* dk_sums = all_sums + (plan.parts == 1 ? slot : item) * plan.sums;
    float* dv_sums = dk_sums + plan.key_sums;
    std::fill(dk_sums, dk_sums + plan.sums, 0.0f);
    // Parts take pairs in turn: so each gets early and late blocks of a causal sequence.
    for (int64_t pair = part; pair < plan.pairs; pair += plan.parts) {
      const int64_t h = kv_head * group + pair / plan.query_blocks;
      const QueryPlace place{b, h, pair % plan.query_blocks * kQueryBlock};
      backward_block(call, layout, dropout, ranges, place, call.workspace + slot * layout.size,
                     {dk_sums, dv_sums});
    }
    if (plan.parts == 1) store_sums(call, b, kv_head, 0, p.keys, dk_sums, dv_sums);
  });
  if (plan.parts == 1) return;
  const int64_t tiles = divide_up(p.keys, kKeyTile);
  pool.run(p.batch * p.kv_heads * tiles, [&](int64_t chunk) {
    combine_parts(call, plan, chunk / tiles, chunk % tiles * kKeyTile, all_sums);
  });
}

void backward_f32(ThreadPool& pool, const AttentionBackward<float>& call) { backward(pool, call); }
void backward_bf16(ThreadPool& pool, const AttentionBackward<bfloat16>& call) {
  backward(pool, call);
}
void backward_f16(ThreadPool& pool, const AttentionBackward<float16>& call) {
  backward(pool, call);
}

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);
HWY_EXPORT(backward_f16);

void backward(ThreadPool& pool, const AttentionBackward<float>& call) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(pool, call);
}
void backward(ThreadPool& pool, const AttentionBackward<bfloat16>& call) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(pool, call);
}
void backward(ThreadPool& pool, const AttentionBackward<float16>& call) {
  HWY_DYNAMIC_DISPATCH(backward_f16)(pool, call);
}

}  // namespace

template <class T>
int64_t attention_workspace(const AttentionBackward<T>& call, const ThreadPool& pool) {
  const int threads = pool.threads();
  if constexpr (!std::is_same_v<T, float16>) {
    if (on_tiles<T>(call.p)) return backward_tiles_scratch<T>(call.p, threads);
  }
  const BackwardPlan plan(call.p);
  return threads * BackwardLayout(call.p).size +
         (plan.parts == 1 ? threads : plan.items) * plan.sums + segment_floats(call.p);
}

template <class T>
void attention_backward(const AttentionBackward<T>& call, ThreadPool& pool) {
  if constexpr (!std::is_same_v<T, float16>) {
    if (on_tiles<T>(call.p)) return backward_tiles(pool, call);
  }
  backward(pool, call);
}

#define DS_ONE_TYPE(T)                                                                  \
  template int64_t attention_workspace(const AttentionBackward<T>&, const ThreadPool&); \
  template void attention_backward(const AttentionBackward<T>&, ThreadPool&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
#endif  // HWY_ONCE
