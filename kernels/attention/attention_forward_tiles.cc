// Attention forward on bf16 tiles: online softmax over panels of keys. A work item is a range of
// queries of one (batch, kv head): keys and values are packed once for all of its query heads, a
// stretch that stays in the second cache level at a time.
#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/cover.h"
#include "kernels/attention/key_runs.h"
#include "kernels/attention/rows_ahead.h"
#include "kernels/attention/scratch.h"
#include "kernels/attention/tile_products.h"
#include "kernels/cpu.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace ds::kernels {
namespace {

using tile::kResult;
using tile::kSide;
using tile::kTerms;
using tile::kTile;

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 32;  // queries whose scores are computed together
constexpr int64_t kPanel = 64;  // keys of those scores
static_assert(kPanel == kUnit);

// Whether tile products run between the exponentials. Measured: the six partial products of fp32
// hide them, one product does not, where a change between the units costs more.
template <class T>
constexpr bool kMixed = tile::kParts<T> > 1;
// Panels whose scores and weights are kept at once.
template <class T>
constexpr int64_t kTurns = kMixed<T> ? 2 : 1;

// Weights are relative to a reference near the largest score so far. It moves only when that has
// grown by more than this power of two, so that sums and values seldom need rescaling.
constexpr float kSlack = 8;

struct Plan {
  TileUnit unit = tile_unit();
  int64_t dim;     // padded size of heads, the larger of keys' and values'
  int64_t group;   // query heads of a kv head
  int64_t range;   // queries of an item, a multiple of kBlock
  int64_t ranges;  // per kv head
  int64_t items;
  int64_t stretch;  // keys packed at once, a multiple of kPanel

  // Queries of a kv head's query heads.
  struct Item {
    int64_t b, kv_head, first_query, queries;
  };
  // Ranges at the end of a causal sequence see most keys: the short items come last.
  Item item(const AttentionProblem& p, int64_t index) const {
    const int64_t kv_item = index / ranges, first = (ranges - 1 - index % ranges) * range;
    return {kv_item / p.kv_heads, kv_item % p.kv_heads, first, std::min(range, p.queries - first)};
  }

  explicit Plan(const AttentionProblem& p) {
    constexpr int64_t kEnoughItems = 8, kLeastRange = 256, kPacked = 65536, kKept = 131072;
    dim = round_up(std::max(p.head_dim, p.value_size()), kTerms);
    group = p.heads / p.kv_heads;
    const int64_t kv_items = std::max<int64_t>(1, p.batch * p.kv_heads);
    const int64_t wanted = std::clamp<int64_t>(divide_up(kEnoughItems, kv_items), 1,
                                               divide_up(p.queries, kLeastRange));
    // Values of all queries of an item are kept between stretches of keys.
    const int64_t most = std::max(kBlock, kKept / (dim * group) / kBlock * kBlock);
    range = std::min(round_up(divide_up(p.queries, wanted), kBlock), most);
    ranges = divide_up(p.queries, range);
    items = kv_items * ranges;
    stretch = std::min(kPacked / dim / kPanel * kPanel, round_up(p.keys, kPanel));
  }
};

// What the rows of a block have so far: references of their exponentials, sums of these, values.
struct BlockRows {
  float *tops, *sums, *out;

  void clear(int64_t dim) const {
    std::fill(tops, tops + kBlock, kMinusInfinity);
    std::fill(sums, sums + kBlock * kSide, 0.0f);
    std::fill(out, out + kBlock * dim, 0.0f);
  }
};

// Of one thread.
template <class T>
struct Buffers {
  static constexpr int64_t kN = tile::kParts<T>;
  uint16_t *keys, *values, *queries, *weights;
  float *scores, *sums, *tops, *out;
  int64_t bytes;

  Buffers(const Plan& plan, std::byte* base) {
    Scratch scratch(base);
    const int64_t kept = plan.group * plan.range;
    keys = scratch.take<uint16_t>(plan.stretch * plan.dim * kN);
    values = scratch.take<uint16_t>(plan.stretch * plan.dim * kN);
    queries = scratch.take<uint16_t>(kBlock * plan.dim * kN);
    weights = scratch.take<uint16_t>(kTurns<T> * kBlock * kPanel * kN);
    scores = scratch.take<float>(kTurns<T> * kBlock * kPanel);
    tops = scratch.take<float>(kept);            // references of the weights
    sums = scratch.take<float>(kept * kSide);    // sums of weights by lane
    out = scratch.take<float>(kept * plan.dim);  // result tiles [query / 16][channel / 16]
    bytes = scratch.bytes();
  }

  BlockRows rows(int64_t first, int64_t dim) const {
    return {tops + first, sums + first * kSide, out + first * dim};
  }
};

// Jobs are filled in where they stay: a copy of what was just written waits for the tiles stored
// before it.

// Scores of a block against `width` packed keys, rows of kPanel.
template <class T>
void score(const uint16_t* queries, const uint16_t* keys, int64_t dim, int64_t width, float* scores,
           tile::Products<tile::kParts<T>>& job) {
  constexpr int64_t kN = tile::kParts<T>, kStep = kN * kTile;
  const int64_t steps = dim / kTerms;
  job.left = queries;
  job.left_lower = steps * kStep;
  job.left_step = kStep;
  job.left_part = kTile;
  job.right = keys;
  job.right_column = steps * kStep;
  job.right_step = kStep;
  job.sums = scores;
  job.sums_column = kSide;
  job.sums_lower = kSide * kPanel;
  job.sums_stride = kPanel * 4;
  job.steps = steps;
  job.count = width / kTerms;
}

// Weights lie in rows of kPanel: [query][key / 32][part][key % 32].
template <class T>
constexpr int64_t kWeightRow = kPanel* tile::kParts<T>;

// Adds weights times values to a block's results.
template <class T>
void add_weighted_values(const uint16_t* weights, const uint16_t* values, int64_t dim,
                         int64_t width, float* out, tile::Products<tile::kParts<T>>& job) {
  constexpr int64_t kN = tile::kParts<T>, kStep = kN * kTile;
  const int64_t across = dim / kSide;
  job.left = weights;
  job.left_lower = kSide * kWeightRow<T>;
  job.left_step = kN * kTerms;
  job.left_part = kTerms;
  job.left_stride = kWeightRow<T> * 2;
  job.right = values;
  job.right_column = kStep;
  job.right_step = across * kStep;
  job.sums = out;
  job.sums_column = kResult;
  job.sums_lower = across * kResult;
  job.steps = width / kTerms;
  job.count = across / 2;
  job.add = true;
}

// What runs beside the exponentials of a panel: tile products, the values of the panel before and
// the scores of the one after, and a line of the rows ahead per query.
template <class T>
struct Beside {
  tile::Products<tile::kParts<T>> values, scores;
  Ahead& ahead;

  void advance() {
    if (!values.done()) {
      values.advance();
    } else if (!scores.done()) {
      scores.advance();
    }
  }
};

// What a panel hides, and what dropout keeps of it: a word of keys per query of the block.
struct PanelBits {
  bool hides = false;
  uint64_t visible[kBlock] = {}, kept[kBlock] = {};
};

__mmask16 lanes(uint64_t word, int64_t vector) {
  return static_cast<__mmask16>(word >> (vector * kSide));
}

// The largest scores of 16 queries in kVectors vectors each.
template <int kVectors>
__m512 largest(const PanelBits& bits, int64_t first_row, float* scores) {
  const __m512 none = _mm512_set1_ps(kMinusInfinity);
  alignas(64) float rows[kResult];
  for (int64_t r = 0; r < kSide; ++r) {
    float* at = scores + r * kPanel;
    __m512 top = none;
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      __m512 score = _mm512_load_ps(at + n * kSide);
      if (bits.hides) {
        score = _mm512_mask_mov_ps(none, lanes(bits.visible[first_row + r], n), score);
        _mm512_store_ps(at + n * kSide, score);
      }
      top = _mm512_max_ps(top, score);
    }
    _mm512_store_ps(rows + r * kSide, top);
  }
  return tile::row_maxima(rows);
}

// Brings sums and values of 16 queries from their old references to new ones.
template <class T>
void rescale(__m512 old, __m512 reference, int64_t dim, float* sums, float* out) {
  alignas(64) float shrink[kSide];
  _mm512_store_ps(shrink, tile::exp2<tile::kParts<T>>(_mm512_sub_ps(old, reference)));
  for (int64_t r = 0; r < kSide; ++r) {
    const __m512 by = _mm512_set1_ps(shrink[r]);
    float* sum = sums + r * kSide;
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), by));
    for (float* at = out + r * kSide; at < out + kSide * dim; at += kResult) {
      _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), by));
    }
  }
}

// Turns the scores of a panel into weights, and advances the products beside it.
template <class T, int kVectors, bool kDrop>
void online_softmax(const PanelBits& bits, float factor, int64_t dim, Beside<T>& beside,
                    float* scores, uint16_t* weights, const BlockRows& rows) {
  const auto [tops, sums, out] = rows;
  constexpr int kN = tile::kParts<T>;
  const __m512 none = _mm512_set1_ps(kMinusInfinity), scale = _mm512_set1_ps(factor);
  alignas(64) float references[kBlock];
  for (int64_t row = 0; row < kBlock; row += kSide) {
    const __m512 old = _mm512_load_ps(tops + row);
    const __m512 top = _mm512_mul_ps(largest<kVectors>(bits, row, scores + row * kPanel), scale);
    const __mmask16 grown =
        _mm512_cmp_ps_mask(top, _mm512_add_ps(old, _mm512_set1_ps(kSlack)), _CMP_GT_OQ);
    const __m512 reference = _mm512_mask_mov_ps(old, grown, top);
    // A query that has seen nothing yet: any finite reference makes all its weights 0.
    const __mmask16 fresh = _mm512_cmp_ps_mask(reference, none, _CMP_EQ_OQ);
    _mm512_store_ps(references + row, _mm512_mask_mov_ps(reference, fresh, _mm512_setzero_ps()));
    _mm512_store_ps(tops + row, reference);
    // Where nothing was seen before, sums and values are 0.
    if (_mm512_mask_cmp_ps_mask(grown, old, none, _CMP_NEQ_UQ) != 0) {
      beside.values.finish();
      rescale<T>(old, _mm512_load_ps(references + row), dim, sums + row * kSide, out + row * dim);
    }
  }
  const int64_t share = beside.values.left_over() + beside.scores.left_over();
  int64_t due = 0;
  for (int64_t r = 0; r < kBlock; ++r) {
    const __m512 own = _mm512_set1_ps(references[r]);
    __m512 sum = _mm512_load_ps(sums + r * kSide);
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; n += 2) {
      const float* at = scores + r * kPanel + n * kSide;
      __m512 low = tile::exp2<kN>(_mm512_fmsub_ps(_mm512_load_ps(at), scale, own));
      __m512 high = tile::exp2<kN>(_mm512_fmsub_ps(_mm512_load_ps(at + kSide), scale, own));
      sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
      if constexpr (kDrop) {
        low = _mm512_maskz_mov_ps(lanes(bits.kept[r], n), low);
        high = _mm512_maskz_mov_ps(lanes(bits.kept[r], n + 1), high);
      }
      __m512i part[kN];
      tile::split<kN>(low, high, part);
      for (int i = 0; i < kN; ++i) {
        _mm512_store_si512(weights + r * kWeightRow<T> + (n / 2 * kN + i) * kTerms, part[i]);
      }
    }
    _mm512_store_ps(sums + r * kSide, sum);
    beside.ahead.fetch_line();
    if constexpr (kMixed<T>) {
      for (due += share; due >= kBlock; due -= kBlock) beside.advance();
    }
  }
}

// Divides by the sums and writes values and logarithms of a block.
template <class T>
void finish(const AttentionForward<T>& call, const QueryPlace& place, int64_t dim,
            const BlockRows& rows) {
  const AttentionProblem& p = call.p;
  const auto [b, h, first] = place;
  const auto [tops, sums, out] = rows;
  const int64_t count = std::min(kBlock, p.queries - first);
  const __m512 keep = _mm512_set1_ps(static_cast<float>(1 / (1 - p.dropout)));
  alignas(64) float logs[kSide], factors[kSide];
  for (int64_t row = 0; row < count; ++row) {
    const int64_t r = row % kSide;
    if (r == 0) {
      const __m512 total = tile::row_sums(sums + row * kSide);
      const __mmask16 some = _mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      const __m512 top = _mm512_mul_ps(_mm512_load_ps(tops + row), _mm512_set1_ps(kLn2));
      _mm512_store_ps(
          logs, _mm512_mask_add_ps(_mm512_set1_ps(kMinusInfinity), some, top, tile::log(total)));
      _mm512_store_ps(factors, _mm512_maskz_div_ps(some, keep, total));
    }
    const __m512 factor = _mm512_set1_ps(factors[r]);
    const float* from = out + row / kSide * kSide * dim + r * kSide;
    T* to = call.out.at(b, first + row, h);
    for (int64_t d = 0; d < p.value_size(); d += 32, from += 2 * kResult) {
      tile::store_row(_mm512_mul_ps(_mm512_load_ps(from), factor),
                      _mm512_mul_ps(_mm512_load_ps(from + kResult), factor), p.value_size() - d,
                      to + d);
    }
    if (call.lse != nullptr) {
      call.lse[(b * p.heads + h) * p.queries + first + row] = logs[r];
    }
  }
}

// The panels of packed keys [first, end) that a block sees something of.
struct Panels {
  Panels(const Cover& cover, int64_t first, int64_t end)
      : cover_(cover),
        next_(std::max(first, cover.first_key() / kUnit * kUnit)),
        end_(std::min(end, cover.end_key())) {}

  int64_t key = 0, width = 0;
  Seen seen = Seen::kNothing;

  bool next() {
    for (; next_ < end_; next_ += kPanel) {
      seen = cover_.unit(next_);
      if (seen == Seen::kNothing) continue;
      key = next_;
      width = round_up(std::min(kPanel, end_ - key), kTerms);
      next_ += kPanel;
      return true;
    }
    return false;
  }

 private:
  const Cover& cover_;
  int64_t next_, end_;
};

// Packed keys.
struct KeyStretch {
  int64_t first, end;
};

// kBlock queries of a head.
struct Block {
  QueryPlace place;
  Cover cover;
  BlockRows rows;
};

// One block against packed keys.
template <class T>
void block(const AttentionForward<T>& call, const Plan& plan, const Buffers<T>& buffers,
           const Block& of, const KeyStretch& keys, Ahead& ahead) {
  constexpr int64_t kN = tile::kParts<T>;
  const auto [b, h, first_query] = of.place;
  const Cover& cover = of.cover;
  const BlockRows& own = of.rows;
  const AttentionProblem& p = call.p;
  const float factor = std::max(std::abs(p.scale) * kLog2E, 1e-30f);
  const int64_t count = std::min(kBlock, p.queries - first_query);
  Panels panels(cover, keys.first, keys.end);
  if (!panels.next()) return;
  const tile::Rows<T> rows{
      {call.q.at(b, first_query, h), call.q.token}, count, p.head_dim, nullptr, p.scale < 0};
  tile::pack_left(rows, kBlock, plan.dim, buffers.queries);
  ahead.of_block({call.out.at(b, first_query, h), call.out.token, count, p.value_size()},
                 {call.q.at(b, first_query + count, h), call.q.token,
                  std::min(kBlock, p.queries - first_query - count), p.head_dim});
  const auto scores_of = [&](int64_t turn) {
    return buffers.scores + turn % kTurns<T> * kBlock * kPanel;
  };
  const auto weights_of = [&](int64_t turn) {
    return buffers.weights + turn % kTurns<T> * kBlock * kPanel * kN;
  };
  const auto packed = [&](int64_t key) { return (key - keys.first) * plan.dim * kN; };
  Beside<T> beside{{}, {}, ahead};
  beside.values.unit = beside.scores.unit = plan.unit;
  score<T>(buffers.queries, buffers.keys + packed(panels.key), plan.dim, panels.width, scores_of(0),
           beside.scores);
  beside.scores.finish();
  PanelBits bits;
  int64_t turn = 0;
  for (bool more = true; more; ++turn) {
    const int64_t key = panels.key, width = panels.width;
    bits.hides = panels.seen == Seen::kSome;
    if (bits.hides) cover.bits(key, bits.visible);
    if (p.dropout > 0) {
      keep_bits(p.stream, p.dropout, p.row_element(b, h, first_query) + static_cast<uint64_t>(key),
                static_cast<uint64_t>(p.keys), count, bits.kept);
    }
    more = panels.next();
    if (more) {
      score<T>(buffers.queries, buffers.keys + packed(panels.key), plan.dim, panels.width,
               scores_of(turn + 1), beside.scores);
    }
    const auto soft =
        p.dropout > 0
            ? (width == kPanel ? online_softmax<T, 4, true> : online_softmax<T, 2, true>)
            : (width == kPanel ? online_softmax<T, 4, false> : online_softmax<T, 2, false>);
    soft(bits, factor, plan.dim, beside, scores_of(turn), weights_of(turn), own);
    // Scores are wanted next, so values come last.
    if constexpr (kMixed<T>) beside.values.finish();
    beside.scores.finish();
    add_weighted_values<T>(weights_of(turn), buffers.values + packed(key), plan.dim, width, own.out,
                           beside.values);
    if constexpr (!kMixed<T>) beside.values.finish();
  }
  if constexpr (kMixed<T>) beside.values.finish();
}

// Packs keys and values. Those that no query sees are packed as zeros, whatever they hold, and so
// are channels that keys or values have fewer than the other.
template <class Place, class T>
void pack_stretch(const AttentionForward<T>& call, const Plan& plan, int64_t b,
                  const KeyStretch& stretch, const Place& keys, const Place& values,
                  const Buffers<T>& buffers) {
  const int64_t rows = stretch.end - stretch.first, padded = round_up(rows, kTerms);
  const uint8_t* const mask = tile_mask(call.p, b, stretch.first);
  tile::pack_right<Place>({keys, rows, call.p.head_dim, mask}, padded, plan.dim, buffers.keys);
  tile::pack_pairs<Place>({values, rows, call.p.value_size(), mask}, padded, plan.dim,
                          buffers.values);
}

// Keys and values from `first` on are packed next.
template <class T>
void expect(const AttentionForward<T>& call, const Plan& plan, const Plan::Item& item,
            int64_t first, Ahead& ahead) {
  if (call.p.key_blocks) return;
  const int64_t rows = std::min(plan.stretch, call.p.keys - first);
  ahead.of_stretch(
      {call.k.at(item.b, first, item.kv_head), call.k.token, rows, call.p.head_dim},
      {call.v.at(item.b, first, item.kv_head), call.v.token, rows, call.p.value_size()});
}

// One item; after it the thread is likely to compute `next`, if that is not null.
template <class T>
void range(const AttentionForward<T>& call, const Plan& plan, const SegmentRange* ranges,
           const Plan::Item& item, const Plan::Item* next, const Buffers<T>& buffers) {
  const AttentionProblem& p = call.p;
  const tile::Session session(plan.unit);
  const Band band(p);
  const auto [b, kv_head, first_query, queries] = item;
  const int64_t blocks = divide_up(queries, kBlock);
  const auto first_key = [&](const Cover& cover) { return cover.first_key() / kUnit * kUnit; };
  const Cover whole(p, band, ranges, b, first_query, queries);
  const int64_t begin = first_key(whole), end = whole.end_key();
  Ahead ahead;
  int64_t key = begin;
  do {
    const int64_t stop = std::min(end, key + plan.stretch);
    if (key >= stop) {  // no query sees a key
    } else if (p.key_blocks) {
      pack_stretch(call, plan, b, {key, stop}, KeyRows<T>(call.k, p.key_blocks, b, key, kv_head),
                   KeyRows<T>(call.v, p.value_blocks, b, key, kv_head), buffers);
    } else {
      pack_stretch(call, plan, b, {key, stop},
                   tile::EvenRows<T>{call.k.at(b, key, kv_head), call.k.token},
                   tile::EvenRows<T>{call.v.at(b, key, kv_head), call.v.token}, buffers);
    }
    if (stop < end) {
      expect(call, plan, item, stop, ahead);
    } else if (next != nullptr) {
      const Cover cover(p, band, ranges, next->b, next->first_query, next->queries);
      expect(call, plan, *next, first_key(cover), ahead);
    }
    for (int64_t g = 0; g < plan.group; ++g) {
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t first = first_query + i * kBlock, at = g * plan.range + i * kBlock;
        const Block one{{b, kv_head * plan.group + g, first},
                        Cover(p, band, ranges, b, first, std::min(kBlock, p.queries - first)),
                        buffers.rows(at, plan.dim)};
        if (key == begin) one.rows.clear(plan.dim);
        block(call, plan, buffers, one, {key, stop}, ahead);
        // As soon as there are no more keys, while the results are in the first cache level.
        const bool open = key == begin || key < one.cover.end_key();
        if (open && stop >= one.cover.end_key()) finish(call, one.place, plan.dim, one.rows);
      }
    }
    key = stop;
  } while (key < end);
}

}  // namespace

template <class T>
int64_t forward_tiles_scratch(const AttentionProblem& p, int threads) {
  const Plan plan(p);
  return threads * Buffers<T>(plan, nullptr).bytes / 4 + Scratch::kAlignment / 4 +
         segment_floats(p);
}

template <class T>
void forward_tiles(ThreadPool& pool, const AttentionForward<T>& call) {
  const AttentionProblem& p = call.p;
  const Plan plan(p);
  std::byte* base = Scratch::aligned(call.workspace);
  const int64_t bytes = Buffers<T>(plan, nullptr).bytes;
  const SegmentRange* ranges =
      fill_segment_ranges(p, reinterpret_cast<float*>(base + pool.threads() * bytes));
  run_with_slots(pool, plan.items, [&](int64_t index, int64_t slot) {
    const int64_t then = index + pool.threads();
    const Plan::Item item = plan.item(p, index), next = plan.item(p, then);
    range(call, plan, ranges, item, then < plan.items ? &next : nullptr,
          Buffers<T>(plan, base + slot * bytes));
  });
}

template int64_t forward_tiles_scratch<float>(const AttentionProblem&, int);
template int64_t forward_tiles_scratch<bfloat16>(const AttentionProblem&, int);
template void forward_tiles(ThreadPool&, const AttentionForward<float>&);
template void forward_tiles(ThreadPool&, const AttentionForward<bfloat16>&);

}  // namespace ds::kernels

#pragma GCC pop_options
