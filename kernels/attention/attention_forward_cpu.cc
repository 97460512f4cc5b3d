// Attention forward: online softmax over tiles of keys, with queries in vector lanes, so that
// maxima, sums and rescaling need no work across lanes.
#include "base/thread_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/visibility.h"
#include "kernels/cpu.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_forward_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <cmath>

#include "kernels/attention/gemm-inl.h"
#include "kernels/attention/pack-inl.h"
#include "kernels/attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {

// Turns scores of one group into weights relative to the new maximum and brings the running
// maximum, sum and weighted values to it.
HWY_NOINLINE inline void softmax_step(const Visible& see, int64_t dim, float* scores, float* maxima,
                                      float* sums, float* values) {
  const DF f;
  const VF none = hn::Set(f, kMinusInfinity);
  for (int n = 0; n < see.vectors; ++n) {
    const int64_t rows = see.rows[n];
    if (rows == 0) continue;
    float* column = scores + n * kLanes;
    VF max0 = none, max1 = none, max2 = none, max3 = none;
    for (int64_t row = 0; row < rows; row += 4) {  // rows is a multiple of kRowPad
      const float* at = column + row * kGroup;
      max0 = hn::Max(max0, hn::Load(f, at));
      max1 = hn::Max(max1, hn::Load(f, at + kGroup));
      max2 = hn::Max(max2, hn::Load(f, at + 2 * kGroup));
      max3 = hn::Max(max3, hn::Load(f, at + 3 * kGroup));
    }
    const VF old = hn::Load(f, maxima + n * kLanes);
    const VF top = hn::Max(hn::Max(hn::Max(max0, max1), hn::Max(max2, max3)), old);
    // A query that has seen nothing yet: any finite reference makes all its weights 0.
    const VF reference = hn::IfThenElse(hn::Eq(top, none), hn::Zero(f), top);
    VF sum = hn::Zero(f);
    for (int64_t row = 0; row < rows; ++row) {
      float* at = column + row * kGroup;
      const VF weight = exp2(hn::Sub(hn::Load(f, at), reference));
      sum = hn::Add(sum, weight);
      hn::Store(weight, f, at);
    }
    float* sum_at = sums + n * kLanes;
    if (hn::AllTrue(f, hn::Eq(top, old))) {
      hn::Store(hn::Add(hn::Load(f, sum_at), sum), f, sum_at);
      continue;
    }
    const VF shrink = exp2(hn::Sub(old, reference));
    hn::Store(hn::MulAdd(hn::Load(f, sum_at), shrink, sum), f, sum_at);
    hn::Store(top, f, maxima + n * kLanes);
    for (int64_t d = 0; d < dim; ++d) {
      float* at = values + d * kGroup + n * kLanes;
      hn::Store(hn::Mul(hn::Load(f, at), shrink), f, at);
    }
  }
}

HWY_NOINLINE inline void drop_weights(const TileBits& dropout, const Visible& see,
                                      uint64_t first_element, int64_t keys, float* scores,
                                      uint32_t* bits) {
  const DF f;
  for (int n = 0; n < see.vectors; ++n) {
    const uint64_t lane_step = static_cast<uint64_t>(keys);
    dropout.fill(first_element + static_cast<uint64_t>(n * kLanes) * lane_step, lane_step,
                 see.rows[n], bits);
    for (int64_t row = 0; row < see.rows[n]; ++row) {
      float* at = scores + row * kGroup + n * kLanes;
      hn::Store(dropout.kept(hn::Load(f, at), bits + row * kLanes), f, at);
    }
  }
}

// Divides by the sums and writes the logarithms.
HWY_NOINLINE inline void finish_group(const AttentionProblem& p, int64_t queries, int64_t dim,
                                      const float* maxima, const float* sums, float* values,
                                      float* lse) {
  const DF f;
  const VF keep = hn::Set(f, static_cast<float>(1 / (1 - p.dropout)));
  for (int64_t lane = 0; lane < queries; lane += kLanes) {
    const VF sum = hn::Load(f, sums + lane);
    const VF factor = hn::IfThenElse(hn::Eq(sum, hn::Zero(f)), hn::Zero(f), hn::Div(keep, sum));
    for (int64_t d = 0; d < dim; ++d) {
      float* at = values + d * kGroup + lane;
      hn::Store(hn::Mul(hn::Load(f, at), factor), f, at);
    }
  }
  if (lse == nullptr) return;
  for (int64_t lane = 0; lane < queries; ++lane) {
    lse[lane] = sums[lane] == 0 ? kMinusInfinity : maxima[lane] * kLn2 + std::log(sums[lane]);
  }
}

template <class T>
void forward_block(const AttentionForward<T>& call, const ForwardLayout& layout,
                   const TileBits& dropout, const SegmentRange* ranges, const QueryPlace& place,
                   float* scratch) {
  const AttentionProblem& p = call.p;
  const int64_t b = place.b, h = place.h, first_query = place.first;
  const Band band(p);
  const int64_t dim = p.head_dim, padded = padded_dim(p), kv_head = h / (p.heads / p.kv_heads);
  const int64_t value_dim = p.value_size(), padded_value = padded_values(p);
  const int64_t queries = std::min(kQueryBlock, p.queries - first_query);
  const int64_t groups = divide_up(queries, kGroup);
  float* rows = scratch + layout.rows;
  float* qt = scratch + layout.qt;
  float* acc = scratch + layout.acc;
  float* keys_tile = scratch + layout.k;
  float* values_tile = scratch + layout.v;
  float* scores = scratch + layout.scores;
  float* maxima = scratch + layout.stats;
  float* sums = maxima + kQueryBlock;

  load_rows(call.q.at(b, first_query, h), call.q.token, queries, dim, padded, p.scale * kLog2E,
            rows);
  rows_to_lanes(rows, queries, padded, qt);
  std::fill(acc, acc + groups * kGroup * padded_value, 0.0f);
  std::fill(maxima, maxima + kQueryBlock, kMinusInfinity);
  std::fill(sums, sums + kQueryBlock, 0.0f);

  QuerySegments segments;
  segments.load(p, b, first_query, queries);
  for (KeyTiles tile(p, band, ranges, b, first_query, queries, segments.all); tile.next();) {
    const int64_t first_key = tile.first_key, keys = tile.keys;
    load_keys<T>({call.k, p.key_blocks, b, first_key, keys, kv_head}, keys, tile.mask, dim, padded,
                 keys_tile);
    load_keys<T>({call.v, p.value_blocks, b, first_key, keys, kv_head}, keys, tile.mask, value_dim,
                 padded_value, values_tile);
    for (int64_t g = 0; g < groups; ++g) {
      if (tile.segments != nullptr && !segments.groups[g].meets(tile.range)) continue;
      const int64_t first = first_query + g * kGroup;
      const Visible see =
          visible_keys(band, first, std::min(kGroup, queries - g * kGroup), first_key, keys);
      if (see.most() == 0) continue;
      float* values = acc + g * kGroup * padded_value;
      scores_tile(see, dim, padded, keys_tile, qt + g * kGroup * padded, scores);
      mask_tile(see, band, tile, segments, first, g * kGroup, scores);
      softmax_step(see, padded_value, scores, maxima + g * kGroup, sums + g * kGroup, values);
      if (p.dropout > 0) {
        drop_weights(dropout, see, p.row_element(b, h, first) + static_cast<uint64_t>(first_key),
                     p.keys, scores, reinterpret_cast<uint32_t*>(scratch + layout.bits));
      }
      add_over_keys(see, round_up(value_dim, kRowPad), padded_value, values_tile, scores, values);
    }
  }
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = first_query + g * kGroup;
    finish_group(p, std::min(kGroup, queries - g * kGroup), padded_value, maxima + g * kGroup,
                 sums + g * kGroup, acc + g * kGroup * padded_value,
                 call.lse == nullptr ? nullptr : call.lse + (b * p.heads + h) * p.queries + first);
  }
  lanes_to_rows(acc, queries, padded_value, rows);
  store_rows(rows, padded_value, queries, value_dim, call.out.token,
             call.out.at(b, first_query, h));
}

template <class T>
void forward(ThreadPool& pool, const AttentionForward<T>& call) {
  const AttentionProblem& p = call.p;
  const ForwardLayout layout(p);
  const TileBits dropout(p.stream, p.dropout);
  const int64_t blocks = divide_up(p.queries, kQueryBlock);
  const SegmentRange* ranges =
      fill_segment_ranges(p, call.workspace + pool.threads() * layout.size);
  // Neighbouring items share a head, whose keys and values then stay in the second cache level.
  // Blocks at the end of a causal sequence see most keys: the short items come last.
  run_with_slots(pool, blocks * p.batch * p.heads, [&](int64_t item, int64_t slot) {
    const int64_t block = blocks - 1 - item % blocks, head = item / blocks;
    const QueryPlace place{head / p.heads, head % p.heads, block * kQueryBlock};
    forward_block(call, layout, dropout, ranges, place, call.workspace + slot * layout.size);
  });
}

void forward_f32(ThreadPool& pool, const AttentionForward<float>& call) { forward(pool, call); }
void forward_bf16(ThreadPool& pool, const AttentionForward<bfloat16>& call) { forward(pool, call); }
void forward_f16(ThreadPool& pool, const AttentionForward<float16>& call) { forward(pool, call); }

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(forward_f16);

void forward(ThreadPool& pool, const AttentionForward<float>& call) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(pool, call);
}
void forward(ThreadPool& pool, const AttentionForward<bfloat16>& call) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(pool, call);
}
void forward(ThreadPool& pool, const AttentionForward<float16>& call) {
  HWY_DYNAMIC_DISPATCH(forward_f16)(pool, call);
}

}  // namespace

TileUnit tile_unit() {
  constexpr int64_t kBoth = HWY_AVX2 | HWY_AVX3;
  const CpuFeatures& cpu = cpu_features();
  if (!cpu.avx512_bf16 || (vector_targets() & kBoth) != kBoth) return TileUnit::kNone;
  return cpu.amx_bf16 ? TileUnit::kAmx : TileUnit::kDots;
}

template <class T>
int64_t attention_workspace(const AttentionForward<T>& call, const ThreadPool& pool) {
  if (DecodePlan::fits(call.p)) return DecodePlan(call.p).total(call.p, pool.threads());
  if constexpr (!std::is_same_v<T, float16>) {
    if (on_tiles<T>(call.p)) return forward_tiles_scratch<T>(call.p, pool.threads());
  }
  return pool.threads() * ForwardLayout(call.p).size + segment_floats(call.p);
}

template <class T>
void attention_forward(const AttentionForward<T>& call, ThreadPool& pool) {
  if (DecodePlan::fits(call.p)) return attention_decode(pool, call);
  if constexpr (!std::is_same_v<T, float16>) {
    if (on_tiles<T>(call.p)) return forward_tiles(pool, call);
  }
  forward(pool, call);
}

#define DS_ONE_TYPE(T)                                                                 \
  template int64_t attention_workspace(const AttentionForward<T>&, const ThreadPool&); \
  template void attention_forward(const AttentionForward<T>&, ThreadPool&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
#endif  // HWY_ONCE
