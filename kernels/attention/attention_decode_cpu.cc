// Attention forward for a few queries against many keys: keys and values are read where they lie,
// once per group of query heads that share them, and long sequences are split among threads.
#include "base/thread_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/key_runs.h"
#include "kernels/attention/visibility.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_decode_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <cmath>
#include <type_traits>

#include "kernels/attention/codes-inl.h"
#include "kernels/attention/gemm-inl.h"
#include "kernels/attention/pack-inl.h"
#include "kernels/attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {

// Vectors of values summed at once, so that kRows times as many sums fit the registers.
inline constexpr int kWide = HWY_MAX_BYTES >= 64 ? 4 : 2;
inline constexpr int64_t kAhead = 16;  // rows of prefetch: strides are too long for the hardware

template <class T>
struct Rows {
  const T* data;
  int64_t stride;
  const T* at(int64_t j) const { return data + j * stride; }
  HWY_INLINE void prefetch(int64_t j, int64_t count, int64_t dim) const {
    if (j + kAhead >= count) return;
    const T* row = at(j + kAhead);
    for (int64_t d = 0; d < dim; d += 64 / static_cast<int64_t>(sizeof(T))) {
      __builtin_prefetch(row + d);
    }
  }
};

// scores[r][j] = q[r] . k[j] for kK keys from `first` on.
template <int kQ, int kK, class T>
HWY_INLINE void scores_of_keys(const float* q, int64_t padded, int64_t dim, Rows<T> k,
                               int64_t first, float* scores) {
  const DF f;
  const int64_t whole = dim / kLanes * kLanes;
  VF sum[kK][kQ];
#pragma GCC unroll 2
  for (int i = 0; i < kK; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kQ; ++r) sum[i][r] = hn::Zero(f);
  }
  const auto add = [&](int64_t d, auto load) DS_SIMD_BODY {
    VF x[kK];
#pragma GCC unroll 2
    for (int i = 0; i < kK; ++i) x[i] = load(k.at(first + i) + d);
#pragma GCC unroll 4
    for (int r = 0; r < kQ; ++r) {
      const VF row = hn::Load(f, q + r * padded + d);
#pragma GCC unroll 2
      for (int i = 0; i < kK; ++i) sum[i][r] = hn::MulAdd(x[i], row, sum[i][r]);
    }
  };
  for (int64_t d = 0; d < whole; d += kLanes) {
    add(d, [&](const T* p) DS_SIMD_BODY { return simd::load(f, p); });
  }
  if (whole < dim) {
    add(whole, [&](const T* p) DS_SIMD_BODY { return simd::load_n(f, p, dim - whole); });
  }
#pragma GCC unroll 2
  for (int i = 0; i < kK; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kQ; ++r) {
      scores[r * kKeySplit + first + i] = simd::sum_of_lanes(f, sum[i][r]);
    }
  }
}

template <int kQ, class T>
HWY_INLINE void few_scores(const float* q, int64_t padded, int64_t dim, Rows<T> k, int64_t keys,
                           float* scores) {
  // Narrow vectors load a row of q once for two keys, whose sums fit the registers.
  constexpr int kK = HWY_MAX_BYTES >= 64 ? 1 : 2;
  int64_t j = 0;
  for (; j + kK <= keys; j += kK) {
    for (int i = 0; i < kK; ++i) k.prefetch(j + i, keys, dim);
    scores_of_keys<kQ, kK, T>(q, padded, dim, k, j, scores);
  }
  for (; j < keys; ++j) scores_of_keys<kQ, 1, T>(q, padded, dim, k, j, scores);
}

// Channels from `first` on; `tail` is the count of elements of a last, partial vector, else 0.
struct Channels {
  int64_t first, tail;
};

// values[r][d ...] = sum over j of weights[r][j] * v[j][d ...] for kN vectors of channels, added to
// what is there with kAdd.
template <int kQ, int kN, bool kAdd, class T>
HWY_INLINE void few_values(const float* weights, Rows<T> v, const uint8_t* mask, int64_t keys,
                           const Channels& channels, int64_t padded, float* values) {
  const DF f;
  const int64_t d = channels.first, tail = channels.tail;
  VF sum[kQ][kN];
#pragma GCC unroll 4
  for (int r = 0; r < kQ; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) {
      sum[r][n] = kAdd ? hn::Load(f, values + r * padded + d + n * kLanes) : hn::Zero(f);
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    if (mask != nullptr && mask[j] == 0) continue;  // even NaN there must not count
    const T* row = v.at(j) + d;
    if (j + kAhead < keys) __builtin_prefetch(v.at(j + kAhead) + d);
    if (j + kAhead < keys && sizeof(T) * kN * kLanes > 64) {
#pragma GCC unroll 4
      for (int n = 1; n < kN; ++n) __builtin_prefetch(v.at(j + kAhead) + d + n * kLanes);
    }
    VF x[kN];
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) {
      x[n] = tail > 0 ? simd::load_n(f, row, tail) : simd::load(f, row + n * kLanes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kQ; ++r) {
      const VF weight = hn::Set(f, weights[r * kKeySplit + j]);
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) sum[r][n] = hn::MulAdd(weight, x[n], sum[r][n]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kQ; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) hn::Store(sum[r][n], f, values + r * padded + d + n * kLanes);
  }
}

// Narrow vectors read a row in several passes: so many keys at a time then that their rows stay in
// the first-level cache, also where they lie a power of two apart. Sums are in the order of keys,
// whatever their number.
inline constexpr int64_t kKeysAtOnce = HWY_MAX_BYTES >= 64 ? kKeySplit : 16;

template <int kQ, bool kAdd, class T>
HWY_INLINE void values_of_keys(const float* weights, Rows<T> v, const uint8_t* mask, int64_t keys,
                               int64_t dim, int64_t padded, float* values) {
  int64_t d = 0;
  for (; d + kWide * kLanes <= dim; d += kWide * kLanes) {
    few_values<kQ, kWide, kAdd>(weights, v, mask, keys, {d, 0}, padded, values);
  }
  for (; d + kLanes <= dim; d += kLanes) {
    few_values<kQ, 1, kAdd>(weights, v, mask, keys, {d, 0}, padded, values);
  }
  if (d < dim) few_values<kQ, 1, kAdd>(weights, v, mask, keys, {d, dim - d}, padded, values);
}

template <int kQ, bool kAdd, class T>
HWY_INLINE void all_values(const float* weights, Rows<T> v, const uint8_t* mask, int64_t keys,
                           int64_t dim, int64_t padded, float* values) {
  if (!kAdd && (keys == 0 || kKeysAtOnce != kKeySplit)) {
    values_of_keys<kQ, false>(weights, v, mask, 0, dim, padded, values);
  }
  for (int64_t j = 0; j < keys; j += kKeysAtOnce) {
    values_of_keys<kQ, kAdd || kKeysAtOnce != kKeySplit>(
        weights + j, Rows<T>{v.at(j), v.stride}, mask == nullptr ? nullptr : mask + j,
        std::min(kKeysAtOnce, keys - j), dim, padded, values);
  }
}

// Those of a block at a time, in their order.
template <int kQ, class T>
HWY_INLINE void scores_of_blocks(const float* q, int64_t padded, int64_t dim, KeyRuns<T> k,
                                 float* scores) {
  while (k.next()) {
    few_scores<kQ, T>(q, padded, dim, {k.rows, k.stride}, k.count(), scores + k.begin);
  }
}
template <int kQ, class T>
HWY_INLINE void values_of_blocks(const float* weights, KeyRuns<T> v, const uint8_t* mask,
                                 int64_t dim, int64_t padded, float* values) {
  all_values<kQ, false, T>(weights, {nullptr, 0}, nullptr, 0, dim, padded, values);
  while (v.next()) {
    all_values<kQ, true, T>(weights + v.begin, {v.rows, v.stride},
                            mask == nullptr ? nullptr : mask + v.begin, v.count(), dim, padded,
                            values);
  }
}

// A split of the keys of a kv head.
struct SplitPlace {
  int64_t b, kv_head, split;
};

// What the rows of a kv head are, in one piece or in blocks.
template <class C>
struct Source {
  HeadView<const C> view;
  TokenBlocks blocks;
  CodedRows<const int8_t, const float> scales;  // of codes, else empty

  KeyRuns<C> runs(const SplitPlace& at, int64_t first, int64_t keys) const {
    return {view, blocks, at.b, first, keys, at.kv_head};
  }
};

// rows[r][j] times the scale of token first + j.
template <int kQ, class C>
HWY_INLINE void scale_tokens(const Source<C>& from, const SplitPlace& at, int64_t first,
                             int64_t keys, float* rows) {
  const DF f;
  KeyRuns<float> run(from.scales.scales, from.scales.scale_blocks, at.b, first, keys, at.kv_head);
  while (run.next()) {
    for (int64_t j = 0; j < run.count(); j += kLanes) {
      const int64_t n = std::min(kLanes, run.count() - j);
      const VF scale = simd::load_n(f, run.rows + j, n);
      for (int r = 0; r < kQ; ++r) {
        float* const row = rows + r * kKeySplit + run.begin + j;
        simd::store_n(hn::Mul(simd::load_n(f, row, n), scale), f, row, n);
      }
    }
  }
}

// Hides scores outside [from, seen), and turns the rest of the row into weights; returns maximum
// and sum.
struct RowStats {
  float top, sum;
};
HWY_NOINLINE inline RowStats weigh_row(int64_t from, int64_t seen, const uint8_t* mask,
                                       int64_t keys, float* scores) {
  const DF f;
  for (int64_t j = 0; j < std::min(from, keys); ++j) scores[j] = kMinusInfinity;
  for (int64_t j = std::max<int64_t>(0, seen); j < round_up(keys, kLanes); ++j) {
    scores[j] = kMinusInfinity;
  }
  if (mask != nullptr) {
    for (int64_t j = 0; j < keys; ++j) {
      if (mask[j] == 0) scores[j] = kMinusInfinity;
    }
  }
  VF tops = hn::Set(f, kMinusInfinity);
  for (int64_t j = 0; j < keys; j += kLanes) tops = hn::Max(tops, hn::Load(f, scores + j));
  const float top = simd::max_of_lanes(f, tops);
  const VF reference = hn::Set(f, top == kMinusInfinity ? 0.0f : top);
  VF sum = hn::Zero(f);
  for (int64_t j = 0; j < keys; j += kLanes) {
    const VF weight = exp2(hn::Sub(hn::Load(f, scores + j), reference));
    sum = hn::Add(sum, weight);
    hn::Store(weight, f, scores + j);
  }
  return {top, simd::sum_of_lanes(f, sum)};
}

HWY_INLINE float log_of_sum(float top, float sum) {
  return sum == 0 ? kMinusInfinity : top * kLn2 + std::log(sum);
}

// Query rows of one kv head in order: all queries of its first query head, then of the next.
struct RowPlace {
  int64_t b, h, i;
  RowPlace(const AttentionProblem& p, int64_t batch, int64_t kv_head, int64_t row)
      : b(batch), h(kv_head * (p.heads / p.kv_heads) + row / p.queries), i(row % p.queries) {}
  int64_t flat(const AttentionProblem& p) const { return (b * p.heads + h) * p.queries + i; }
};

// Query rows from `first_row` on and the keys of a split.
struct Stretch {
  SplitPlace at;
  int64_t first_row, first_key, keys;
};

template <int kQ>
struct QueryRows {
  float *scores, *q, *values;  // scratch: kQ rows each
  RowStats stats[kQ];
};

// The weights of the keys for the queries, and the sums of values that they weigh.
template <int kQ, class C>
HWY_NOINLINE void weigh_values(const AttentionProblem& p, const Source<C>& k, const Source<C>& v,
                               const Stretch& of, QueryRows<kQ>& rows) {
  constexpr bool kCoded = std::is_same_v<C, int8_t>;
  const SplitPlace& at = of.at;
  const int64_t first = of.first_key, keys = of.keys;
  const Band band(p, p.keys_of(at.b));
  const uint8_t* mask = tile_mask(p, at.b, first);
  scores_of_blocks<kQ, C>(rows.q, padded_dim(p), p.head_dim, k.runs(at, first, keys), rows.scores);
  if constexpr (kCoded) scale_tokens<kQ>(k, at, first, keys, rows.scores);
  for (int r = 0; r < kQ; ++r) {
    const int64_t i = RowPlace(p, at.b, at.kv_head, of.first_row + r).i;
    const int64_t seen = std::min(band.end_key(i) - first, keys);
    rows.stats[r] =
        weigh_row(band.first_key(i) - first, seen, mask, keys, rows.scores + r * kKeySplit);
  }
  if constexpr (kCoded) scale_tokens<kQ>(v, at, first, keys, rows.scores);
  values_of_blocks<kQ, C>(rows.scores, v.runs(at, first, keys), mask, p.value_size(),
                          padded_values(p), rows.values);
}

// `plan` is that of the sequence.
template <int kQ, class T>
void decode_rows(const AttentionForward<T>& call, const DecodePlan& plan, const SplitPlace& at,
                 int64_t first_row, float* scratch, float* partials) {
  const AttentionProblem& p = call.p;
  const int64_t b = at.b, kv_head = at.kv_head, split = at.split;
  const DF f;
  const int64_t padded = padded_dim(p);
  const int64_t value_dim = p.value_size(), padded_value = padded_values(p);
  const int64_t first_key = plan.first_key + split * kKeySplit;
  const int64_t keys = std::min(kKeySplit, plan.end_key - first_key);
  QueryRows<kQ> rows;
  rows.scores = scratch;
  rows.q = rows.scores + kQ * kKeySplit;
  rows.values = rows.q + kQ * padded;
  for (int r = 0; r < kQ; ++r) {
    const RowPlace place(p, b, kv_head, first_row + r);
    load_rows(call.q.at(b, place.i, place.h), 0, 1, p.head_dim, padded, p.scale * kLog2E,
              rows.q + r * padded);
  }
  const Stretch stretch{at, first_row, first_key, keys};
  if (call.coded_k) {
    const Source<int8_t> k{call.coded_k.codes, call.coded_k.blocks, call.coded_k};
    const Source<int8_t> v{call.coded_v.codes, call.coded_v.blocks, call.coded_v};
    weigh_values(p, k, v, stretch, rows);
  } else {
    const Source<T> k{call.k, p.key_blocks, {}}, v{call.v, p.value_blocks, {}};
    weigh_values(p, k, v, stretch, rows);
  }
  for (int r = 0; r < kQ; ++r) {
    const RowPlace place(p, b, kv_head, first_row + r);
    const RowStats& stats = rows.stats[r];
    float* row = rows.values + r * padded_value;
    if (plan.splits > 1) {
      float* partial = partials + (place.flat(p) * plan.room + split) * plan.partial;
      partial[0] = stats.top;
      partial[1] = stats.sum;
      std::copy(row, row + round_up(value_dim, kLanes), partial + DecodePlan::kStats);
      continue;
    }
    const VF factor = hn::Set(f, stats.sum == 0 ? 0.0f : 1 / stats.sum);
    for (int64_t d = 0; d < value_dim; d += kLanes) {
      hn::Store(hn::Mul(hn::Load(f, row + d), factor), f, row + d);
    }
    store_rows(row, padded_value, 1, value_dim, 0, call.out.at(b, place.i, place.h));
    if (call.lse != nullptr) call.lse[place.flat(p)] = log_of_sum(stats.top, stats.sum);
  }
}

// Joins the splits of one query row, in their order.
template <class T>
void combine_splits(const AttentionForward<T>& call, const DecodePlan& plan, int64_t flat,
                    float* partials) {
  const AttentionProblem& p = call.p;
  const DF f;
  const int64_t dim = p.value_size(), padded = padded_values(p);
  float* first = partials + flat * plan.room * plan.partial;
  float* total = first + DecodePlan::kStats;
  float top = kMinusInfinity;
  for (int64_t s = 0; s < plan.splits; ++s) top = std::max(top, first[s * plan.partial]);
  const VF reference = hn::Set(f, top == kMinusInfinity ? 0.0f : top);
  float sum = 0;
  for (int64_t s = 0; s < plan.splits; ++s) {
    const float* partial = first + s * plan.partial;
    const VF factor = exp2(hn::Sub(hn::Set(f, partial[0]), reference));
    sum += hn::GetLane(factor) * partial[1];
    for (int64_t d = 0; d < dim; d += kLanes) {
      const VF so_far = s == 0 ? hn::Zero(f) : hn::Load(f, total + d);
      hn::Store(hn::MulAdd(factor, hn::Load(f, partial + DecodePlan::kStats + d), so_far), f,
                total + d);
    }
  }
  const VF factor = hn::Set(f, sum == 0 ? 0.0f : 1 / sum);
  for (int64_t d = 0; d < dim; d += kLanes) {
    hn::Store(hn::Mul(hn::Load(f, total + d), factor), f, total + d);
  }
  const int64_t i = flat % p.queries, h = flat / p.queries % p.heads;
  store_rows(total, padded, 1, dim, 0, call.out.at(flat / p.queries / p.heads, i, h));
  if (call.lse != nullptr) call.lse[flat] = log_of_sum(top, sum);
}

template <class T>
void decode(ThreadPool& pool, const AttentionForward<T>& call) {
  const AttentionProblem& p = call.p;
  const DecodePlan plan(p);
  float* partials = call.workspace + pool.threads() * plan.scratch;
  run_with_slots(pool, plan.items, [&](int64_t item, int64_t slot) {
    // Neighbouring items are heads of the same keys, which share the pages of a cache.
    const int64_t kv_head = item % p.kv_heads, stretch = item / p.kv_heads;
    const int64_t split = stretch % plan.splits, b = stretch / plan.splits;
    const DecodePlan own = plan.of(p, b);
    if (split >= own.splits) return;
    const SplitPlace place{b, kv_head, split};
    float* scratch = call.workspace + slot * plan.scratch;
    for (int64_t row = 0; row < plan.rows_per_item; row += DecodePlan::kRows) {
      switch (std::min(DecodePlan::kRows, plan.rows_per_item - row)) {
        case 1:
          decode_rows<1>(call, own, place, row, scratch, partials);
          break;
        case 2:
          decode_rows<2>(call, own, place, row, scratch, partials);
          break;
        case 3:
          decode_rows<3>(call, own, place, row, scratch, partials);
          break;
        default:
          decode_rows<4>(call, own, place, row, scratch, partials);
      }
    }
  });
  if (plan.splits == 1) return;
  pool.for_range(p.batch * p.heads * p.queries, 8, [&](int64_t begin, int64_t end) {
    for (int64_t flat = begin; flat < end; ++flat) {
      const DecodePlan own = plan.of(p, flat / p.queries / p.heads);
      if (own.splits > 1) combine_splits(call, own, flat, partials);
    }
  });
}

void decode_f32(ThreadPool& pool, const AttentionForward<float>& call) { decode(pool, call); }
void decode_bf16(ThreadPool& pool, const AttentionForward<bfloat16>& call) { decode(pool, call); }
void decode_f16(ThreadPool& pool, const AttentionForward<float16>& call) { decode(pool, call); }

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {
HWY_EXPORT(decode_f32);
HWY_EXPORT(decode_bf16);
HWY_EXPORT(decode_f16);
}  // namespace

template <>
void attention_decode(ThreadPool& pool, const AttentionForward<float>& call) {
  HWY_DYNAMIC_DISPATCH(decode_f32)(pool, call);
}
template <>
void attention_decode(ThreadPool& pool, const AttentionForward<bfloat16>& call) {
  HWY_DYNAMIC_DISPATCH(decode_bf16)(pool, call);
}
template <>
void attention_decode(ThreadPool& pool, const AttentionForward<float16>& call) {
  HWY_DYNAMIC_DISPATCH(decode_f16)(pool, call);
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
