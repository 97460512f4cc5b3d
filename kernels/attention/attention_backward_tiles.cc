// Attention backward on bf16 tiles: probabilities are recomputed from the stored log-sum-exp, 64
// keys by 64 queries at a time, with keys in rows. A work item owns its sums of dk and dv; dq of a
// stretch of queries is complete when its keys are through.
#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/cover.h"
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
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 64;  // keys and queries of a block
static_assert(kBlock == kUnit);

// Every item belongs to one (batch, kv head) and sums dk and dv over its part of the (query head,
// stretch of queries) pairs; with enough heads there is one part.
struct Plan {
  TileUnit unit = tile_unit();
  int64_t dim;        // padded size of heads, the larger of keys' and values'
  int64_t group;      // query heads of a kv head
  int64_t stretch;    // queries packed at once, a multiple of kBlock
  int64_t stretches;  // of a head
  int64_t parts, items;
  int64_t keys;  // padded
  int64_t sums;  // floats of dk and dv sums of an item

  explicit Plan(const AttentionProblem& p) {
    constexpr int64_t kEnoughItems = 8, kMostParts = 4, kPacked = 65536;
    dim = round_up(std::max(p.head_dim, p.value_size()), kTerms);
    group = p.heads / p.kv_heads;
    const int64_t kv_items = p.batch * p.kv_heads, blocks = divide_up(p.queries, kBlock);
    const int64_t wanted =
        std::clamp<int64_t>(divide_up(kEnoughItems, std::max<int64_t>(1, kv_items)), 1, kMostParts);
    const int64_t least = divide_up(p.queries * dim, kPacked);
    stretches = std::clamp<int64_t>(std::max(least, divide_up(wanted, group)), 1,
                                    std::max<int64_t>(1, blocks));
    stretch = std::max<int64_t>(1, divide_up(blocks, stretches)) * kBlock;
    stretches = divide_up(p.queries, stretch);
    parts = std::clamp<int64_t>(group * stretches, 1, wanted);
    items = kv_items * parts;
    keys = round_up(p.keys, kBlock);
    sums = 2 * keys * dim;
  }
};

// Of one thread.
template <class T>
struct Buffers {
  static constexpr int64_t kN = tile::kParts<T>;
  // Of a stretch: q and dout as right tiles whose terms are channels, and whose terms are queries.
  uint16_t *q_right, *dout_right, *q_pairs, *dout_pairs;
  float *lse, *dots;  // in units of log 2, and d out . out
  float* dq;          // results [query / 16][channel / 16] with channels in rows
  // Of a block of keys: left tiles whose terms are channels; k's with channels in rows, too.
  uint16_t *k_left, *v_left, *k_transposed, *k_pairs;
  float *scores, *dscores;             // results [key / 16][query / 16] of 32 x 32
  uint16_t *weights, *dleft, *dright;  // of a block
  int64_t bytes;

  Buffers(const Plan& plan, std::byte* base) {
    Scratch scratch(base);
    const int64_t stretch = plan.stretch * plan.dim * kN, block = kBlock * plan.dim * kN;
    q_right = scratch.take<uint16_t>(stretch);
    dout_right = scratch.take<uint16_t>(stretch);
    q_pairs = scratch.take<uint16_t>(stretch);
    dout_pairs = scratch.take<uint16_t>(stretch);
    lse = scratch.take<float>(plan.stretch);
    dots = scratch.take<float>(plan.stretch);
    dq = scratch.take<float>(plan.stretch * plan.dim);
    k_left = scratch.take<uint16_t>(block);
    v_left = scratch.take<uint16_t>(block);
    k_transposed = scratch.take<uint16_t>(block);
    k_pairs = scratch.take<uint16_t>(block);
    scores = scratch.take<float>(4 * kResult);
    dscores = scratch.take<float>(4 * kResult);
    weights = scratch.take<uint16_t>(kBlock * kBlock * kN);
    dleft = scratch.take<uint16_t>(kBlock * kBlock * kN);
    dright = scratch.take<uint16_t>(kBlock * kBlock * kN);
    bytes = scratch.bytes();
  }
};

template <class T>
__m512 read16(const T* from, int64_t n) {
  const auto lanes = first_lanes<__mmask16>(n);
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_maskz_loadu_ps(lanes, from);
  } else {
    const __m256i bits = _mm256_maskz_loadu_epi16(lanes, from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
}

template <class T>
float dot(const T* x, const T* y, int64_t n) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t d = 0; d < n; d += 16) {
    sum = _mm512_fmadd_ps(read16(x + d, n - d), read16(y + d, n - d), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

// Packs the queries [first, first + count) of a head and clears their dq.
template <class T>
void load_stretch(const AttentionBackward<T>& call, const Plan& plan, int64_t b, int64_t h,
                  int64_t first, int64_t count, const Buffers<T>& to) {
  const AttentionProblem& p = call.p;
  const int64_t padded = round_up(count, kBlock);
  // The sign of the scale is q's, so that the factor of the scores is positive.
  const tile::Rows<T> q{
      {call.q.at(b, first, h), call.q.token}, count, p.head_dim, nullptr, p.scale < 0};
  const tile::Rows<T> dout{{call.g.dout.at(b, first, h), call.g.dout.token}, count, p.value_size()};
  tile::pack_right(q, padded, plan.dim, to.q_right);
  tile::pack_pairs(q, padded, plan.dim, to.q_pairs);
  tile::pack_right(dout, padded, plan.dim, to.dout_right);
  tile::pack_pairs(dout, padded, plan.dim, to.dout_pairs);
  const float* lse = call.g.lse + (b * p.heads + h) * p.queries + first;
  for (int64_t i = 0; i < padded; ++i) {
    // A query that sees nothing must get weights of 0, not exp(-inf + inf).
    const bool sees = i < count && lse[i] != -kInfinity;
    to.lse[i] = sees ? lse[i] * kLog2E : kInfinity;
    to.dots[i] = i < count ? dot(call.g.dout.at(b, first + i, h), call.g.out.at(b, first + i, h),
                                 p.value_size())
                           : 0;
  }
  std::fill(to.dq, to.dq + padded * plan.dim, 0.0f);
}

template <class T>
void load_keys(const AttentionBackward<T>& call, const Plan& plan, int64_t b, int64_t kv_head,
               int64_t first, const Buffers<T>& to) {
  constexpr int64_t kN = tile::kParts<T>;
  const AttentionProblem& p = call.p;
  const int64_t count = std::min(kBlock, p.keys - first);
  const uint8_t* mask = tile_mask(p, b, first);
  const tile::Rows<T> k{{call.k.at(b, first, kv_head), call.k.token}, count, p.head_dim, mask};
  const tile::Rows<T> v{{call.v.at(b, first, kv_head), call.v.token}, count, p.value_size(), mask};
  tile::pack_left(k, kBlock, plan.dim, to.k_left);
  tile::pack_left(v, kBlock, plan.dim, to.v_left);
  // Pairs of keys by channel, transposed, are channels by keys.
  tile::pack_pairs(k, kBlock, plan.dim, to.k_pairs);
  const int64_t across = plan.dim / kSide, steps = kBlock / kTerms;
  for (int64_t d = 0; d < across; ++d) {
    for (int64_t s = 0; s < steps; ++s) {
      for (int64_t i = 0; i < kN; ++i) {
        tile::transpose_tile(to.k_pairs + ((s * across + d) * kN + i) * kTile,
                             to.k_transposed + ((d * steps + s) * kN + i) * kTile);
      }
    }
  }
}

// Scores of 32 keys against 32 queries.
template <class T>
void score(TileUnit unit, const uint16_t* keys, const uint16_t* queries, int64_t dim,
           float* scores) {
  constexpr int64_t kN = tile::kParts<T>, kStep = kN * kTile;
  const int64_t steps = dim / kTerms;
  tile::multiply<kN>(unit, {.left = keys,
                            .right = queries,
                            .sums = scores,
                            .left_lower = steps * kStep,
                            .left_step = kStep,
                            .left_part = kTile,
                            .right_column = steps * kStep,
                            .right_step = kStep,
                            .sums_column = kResult,
                            .sums_lower = 2 * kResult,
                            .steps = steps,
                            .count = 1});
}

// What a block hides, and what dropout keeps: a word of queries per key.
struct BlockBits {
  bool hides = false, drops = false;
  uint64_t visible[kBlock] = {}, kept[kBlock] = {};
  bool live[2][2] = {{true, true}, {true, true}};  // [key / 32][query / 32]

  void find_live() {
    for (int k = 0; k < 2; ++k) {
      uint64_t any = 0;
      for (int r = 0; r < 32; ++r) any |= visible[k * 32 + r];
      live[k][0] = static_cast<uint32_t>(any) != 0;
      live[k][1] = any >> 32 != 0;
    }
  }
};

// From scores and d out . v of 32 keys by 32 queries: the probabilities that multiplied v and the
// gradients of the scaled scores as left tiles, and the latter as right tiles, too, whose columns
// are in the order that column_query() gives.
struct ScoreGradients {
  const float *lse, *dots, *scores, *dscores;
  uint16_t *weights, *dleft, *dright;
};
template <class T, bool kHide, bool kDrop>
void gradient_of_scores(const BlockBits& bits, int64_t first_key, int64_t first_query, float factor,
                        float keep_scale, const ScoreGradients& call) {
  const auto [lse, dots, scores, dscores, weights, dleft, dright] = call;
  constexpr int kN = tile::kParts<T>;
  const __m512 scale = _mm512_set1_ps(factor), keep = _mm512_set1_ps(keep_scale);
  const __m512 lse0 = _mm512_load_ps(lse), lse1 = _mm512_load_ps(lse + kSide);
  const __m512 dots0 = _mm512_load_ps(dots), dots1 = _mm512_load_ps(dots + kSide);
  __m512i part[kN], even[kN];
  for (int64_t row = 0; row < 32; ++row) {
    const int64_t at = row / kSide * 2 * kResult + row % kSide * kSide;
    __m512 p0 = tile::exp2<kN>(_mm512_fmsub_ps(_mm512_load_ps(scores + at), scale, lse0));
    __m512 p1 = tile::exp2<kN>(_mm512_fmsub_ps(_mm512_load_ps(scores + at + kResult), scale, lse1));
    __m512 d0 = _mm512_load_ps(dscores + at), d1 = _mm512_load_ps(dscores + at + kResult);
    if constexpr (kHide) {
      const uint64_t word = bits.visible[first_key + row] >> first_query;
      p0 = _mm512_maskz_mov_ps(static_cast<__mmask16>(word), p0);
      p1 = _mm512_maskz_mov_ps(static_cast<__mmask16>(word >> kSide), p1);
    }
    __m512 w0 = p0, w1 = p1;
    if constexpr (kDrop) {
      const uint64_t word = bits.kept[first_key + row] >> first_query;
      const auto kept0 = static_cast<__mmask16>(word),
                 kept1 = static_cast<__mmask16>(word >> kSide);
      w0 = _mm512_maskz_mul_ps(kept0, p0, keep);
      w1 = _mm512_maskz_mul_ps(kept1, p1, keep);
      d0 = _mm512_maskz_mul_ps(kept0, d0, keep);
      d1 = _mm512_maskz_mul_ps(kept1, d1, keep);
    }
    // Left tiles lie [key / 16][query / 32] in a block.
    const int64_t to = row / kSide * 2 * kN * kTile + row % kSide * kTerms;
    tile::split<kN>(w0, w1, part);
    for (int i = 0; i < kN; ++i) _mm512_store_si512(weights + to + i * kTile, part[i]);
    tile::split<kN>(_mm512_mul_ps(p0, _mm512_sub_ps(d0, dots0)),
                    _mm512_mul_ps(p1, _mm512_sub_ps(d1, dots1)), part);
    for (int i = 0; i < kN; ++i) {
      _mm512_store_si512(dleft + to + i * kTile, part[i]);
      if (row % 2 == 0) {
        even[i] = part[i];
        continue;
      }
      uint16_t* pair = dright + i * kTile + row / 2 * kTerms;
      _mm512_store_si512(pair, _mm512_unpacklo_epi16(even[i], part[i]));
      _mm512_store_si512(pair + kN * kTile, _mm512_unpackhi_epi16(even[i], part[i]));
    }
  }
}

// The query, of 32, in a column of the right tiles above: interleaving works on 128 bits at a time.
int64_t column_query(int64_t column) {
  return column % kSide / 4 * 8 + column / kSide * 4 + column % 4;
}

// The halves of a block that are live.
struct LiveHalves {
  explicit LiveHalves(bool lower, bool upper) : first(lower ? 0 : 1), count(lower + upper) {}
  int64_t first, count;
};

// sums[key][channel] += sum over queries of left[key][query] * right[query][channel].
template <class T>
void add_over_queries(TileUnit unit, const BlockBits& bits, const uint16_t* left,
                      const uint16_t* right, int64_t dim, float* sums) {
  constexpr int64_t kN = tile::kParts<T>, kStep = kN * kTile;
  const int64_t across = dim / kSide;
  for (int64_t k = 0; k < 2; ++k) {
    const LiveHalves live(bits.live[k][0], bits.live[k][1]);
    if (live.count == 0) continue;
    tile::multiply<kN>(unit, {.left = left + (4 * k + live.first) * kStep,
                              .right = right + live.first * across * kStep,
                              .sums = sums + 2 * k * across * kResult,
                              .left_lower = 2 * kStep,
                              .left_step = kStep,
                              .left_part = kTile,
                              .right_column = kStep,
                              .right_step = across * kStep,
                              .sums_column = kResult,
                              .sums_lower = across * kResult,
                              .steps = live.count,
                              .count = across / 2,
                              .add = true});
  }
}

// sums[channel][query] += sum over keys of left[channel][key] * right[key][query].
template <class T>
void add_over_keys(TileUnit unit, const BlockBits& bits, const uint16_t* left,
                   const uint16_t* right, int64_t dim, float* sums) {
  constexpr int64_t kN = tile::kParts<T>, kStep = kN * kTile;
  const int64_t across = dim / kSide;
  for (int64_t q = 0; q < 2; ++q) {
    const LiveHalves live(bits.live[0][q], bits.live[1][q]);
    if (live.count == 0) continue;
    for (int64_t n = 0; n < across; n += 2) {
      tile::multiply<kN>(unit, {.left = left + (2 * n + live.first) * kStep,
                                .right = right + (4 * live.first + 2 * q) * kStep,
                                .sums = sums + (2 * q * across + n) * kResult,
                                .left_lower = 2 * kStep,
                                .left_step = kStep,
                                .left_part = kTile,
                                .right_column = kStep,
                                .right_step = 4 * kStep,
                                .sums_column = across * kResult,
                                .sums_lower = kResult,
                                .steps = live.count,
                                .count = 1,
                                .add = true});
    }
  }
}

// One block: 64 packed keys against 64 queries at `offset` in the stretch.
template <class T>
void block(const AttentionBackward<T>& call, const Plan& plan, const Buffers<T>& buffers,
           const BlockBits& bits, int64_t offset, float* dk_sums, float* dv_sums) {
  constexpr int64_t kN = tile::kParts<T>;
  const AttentionProblem& p = call.p;
  const float factor = std::max(std::abs(p.scale) * kLog2E, 1e-30f);
  const float keep_scale = static_cast<float>(1 / (1 - p.dropout));
  const auto soft = bits.drops   ? gradient_of_scores<T, true, true>
                    : bits.hides ? gradient_of_scores<T, true, false>
                                 : gradient_of_scores<T, false, false>;
  const int64_t packed = offset * plan.dim * kN, half = kTerms * plan.dim * kN;
  for (int64_t k = 0; k < 2; ++k) {
    for (int64_t q = 0; q < 2; ++q) {
      if (!bits.live[k][q]) continue;
      score<T>(plan.unit, buffers.k_left + k * half, buffers.q_right + packed + q * half, plan.dim,
               buffers.scores);
      score<T>(plan.unit, buffers.v_left + k * half, buffers.dout_right + packed + q * half,
               plan.dim, buffers.dscores);
      const int64_t left = (4 * k + q) * kN * kTile, right = (4 * k + 2 * q) * kN * kTile;
      const int64_t first = offset + q * kTerms;
      soft(bits, k * kTerms, q * kTerms, factor, keep_scale,
           {.lse = buffers.lse + first,
            .dots = buffers.dots + first,
            .scores = buffers.scores,
            .dscores = buffers.dscores,
            .weights = buffers.weights + left,
            .dleft = buffers.dleft + left,
            .dright = buffers.dright + right});
    }
  }
  add_over_queries<T>(plan.unit, bits, buffers.weights, buffers.dout_pairs + packed, plan.dim,
                      dv_sums);
  add_over_queries<T>(plan.unit, bits, buffers.dleft, buffers.q_pairs + packed, plan.dim, dk_sums);
  add_over_keys<T>(plan.unit, bits, buffers.k_transposed, buffers.dright, plan.dim,
                   buffers.dq + offset * plan.dim);
}

// Rows of one head in a tensor, from `first` on.
template <class T>
struct HeadRows {
  HeadView<T> view;
  int64_t b, first, h;
};

// Writes results [rows][dim] with `from` pointing at [row / 16][channel / 16] tiles.
template <class T>
void store_results(const float* from, int64_t rows, int64_t dim, int64_t head_dim, float factor,
                   const HeadRows<T>& to) {
  const __m512 by = _mm512_set1_ps(factor);
  for (int64_t row = 0; row < rows; ++row) {
    const float* at = from + row / kSide * kSide * dim + row % kSide * kSide;
    T* target = to.view.at(to.b, to.first + row, to.h);
    for (int64_t d = 0; d < head_dim; d += 32, at += 2 * kResult) {
      tile::store_row(_mm512_mul_ps(_mm512_load_ps(at), by),
                      _mm512_mul_ps(_mm512_load_ps(at + kResult), by), head_dim - d, target + d);
    }
  }
}

// Turns dq of a stretch and writes it.
template <class T>
void store_queries(const AttentionBackward<T>& call, const Plan& plan, int64_t b, int64_t h,
                   int64_t first, int64_t count, const Buffers<T>& buffers) {
  const int64_t across = plan.dim / kSide;
  const __m512 by = _mm512_set1_ps(call.p.scale);
  for (int64_t tile = 0; tile < divide_up(count, kTerms) * 2; ++tile) {
    float* results = buffers.dq + tile * across * kResult;
    for (int64_t n = 0; n < across; ++n) {
      tile::transpose_tile(results + n * kResult, results + n * kResult);
    }
    for (int64_t r = 0; r < kSide; ++r) {
      const int64_t query = tile / 2 * kTerms + column_query(tile % 2 * kSide + r);
      if (query >= count) continue;
      T* target = call.g.dq.at(b, first + query, h);
      const float* at = results + r * kSide;
      for (int64_t d = 0; d < call.p.head_dim; d += 32, at += 2 * kResult) {
        tile::store_row(_mm512_mul_ps(_mm512_load_ps(at), by),
                        _mm512_mul_ps(_mm512_load_ps(at + kResult), by), call.p.head_dim - d,
                        target + d);
      }
    }
  }
}

// Adds one pair of (query head, stretch of queries) to the sums and writes its dq.
template <class T>
void pair(const AttentionBackward<T>& call, const Plan& plan, const SegmentRange* ranges,
          const QueryPlace& place, const Buffers<T>& buffers, float* dk_sums, float* dv_sums) {
  const AttentionProblem& p = call.p;
  const int64_t b = place.b, h = place.h, first_query = place.first;
  const Band band(p);
  const int64_t count = std::min(plan.stretch, p.queries - first_query);
  load_stretch(call, plan, b, h, first_query, count, buffers);
  const Cover whole(p, band, ranges, b, first_query, count);
  BlockBits bits;
  for (int64_t key = whole.first_key() / kUnit * kUnit; key < whole.end_key(); key += kUnit) {
    if (whole.unit(key) == Seen::kNothing) continue;
    load_keys(call, plan, b, h / plan.group, key, buffers);
    for (int64_t offset = 0; offset < count; offset += kBlock) {
      const int64_t first = first_query + offset, queries = std::min(kBlock, p.queries - first);
      const Cover cover(p, band, ranges, b, first, queries);
      const Seen seen = cover.unit(key);
      if (seen == Seen::kNothing) continue;
      bits.drops = p.dropout > 0;
      bits.hides = bits.drops || seen == Seen::kSome;
      if (bits.hides) {
        std::fill(bits.visible, bits.visible + kBlock, uint64_t{0});
        cover.bits(key, bits.visible);
        turn_bits(bits.visible);
        bits.find_live();
      } else {
        std::fill(bits.live[0], bits.live[0] + 4, true);
      }
      if (bits.drops) {
        keep_bits(p.stream, p.dropout, p.row_element(b, h, first) + static_cast<uint64_t>(key),
                  static_cast<uint64_t>(p.keys), queries, bits.kept);
        turn_bits(bits.kept);
      }
      block(call, plan, buffers, bits, offset, dk_sums + key * plan.dim, dv_sums + key * plan.dim);
    }
  }
  store_queries(call, plan, b, h, first_query, count, buffers);
}

// Writes dk and dv of some keys.
template <class T>
void store_sums(const AttentionBackward<T>& call, const Plan& plan, int64_t kv_item,
                int64_t first_key, int64_t keys, const float* sums) {
  const AttentionProblem& p = call.p;
  const int64_t b = kv_item / p.kv_heads, kv_head = kv_item % p.kv_heads;
  const float* dk = sums + first_key * plan.dim;
  store_results(dk, keys, plan.dim, p.head_dim, std::abs(p.scale),
                HeadRows<T>{call.g.dk, b, first_key, kv_head});
  store_results(dk + plan.sums / 2, keys, plan.dim, p.value_size(), 1.0f,
                HeadRows<T>{call.g.dv, b, first_key, kv_head});
}

// Adds the parts of a block of keys in order into the first and writes it.
template <class T>
void combine_parts(const AttentionBackward<T>& call, const Plan& plan, int64_t kv_item,
                   int64_t first_key, float* all_sums) {
  float* sums = all_sums + kv_item * plan.parts * plan.sums;
  for (int64_t half = 0; half < 2; ++half) {
    float* to = sums + half * (plan.sums / 2) + first_key * plan.dim;
    for (int64_t i = 0; i < kBlock * plan.dim; i += 16) {
      __m512 sum = _mm512_load_ps(to + i);
      for (int64_t part = 1; part < plan.parts; ++part) {
        sum = _mm512_add_ps(sum, _mm512_load_ps(to + part * plan.sums + i));
      }
      _mm512_store_ps(to + i, sum);
    }
  }
  store_sums(call, plan, kv_item, first_key, std::min(kBlock, call.p.keys - first_key), sums);
}

}  // namespace

template <class T>
int64_t backward_tiles_scratch(const AttentionProblem& p, int threads) {
  const Plan plan(p);
  return threads * Buffers<T>(plan, nullptr).bytes / 4 + Scratch::kAlignment / 4 +
         (plan.parts == 1 ? threads : plan.items) * plan.sums + segment_floats(p);
}

template <class T>
void backward_tiles(ThreadPool& pool, const AttentionBackward<T>& call) {
  const AttentionProblem& p = call.p;
  const Plan plan(p);
  std::byte* base = Scratch::aligned(call.workspace);
  const int64_t bytes = Buffers<T>(plan, nullptr).bytes;
  auto* all_sums = reinterpret_cast<float*>(base + pool.threads() * bytes);
  const SegmentRange* ranges = fill_segment_ranges(
      p, all_sums + (plan.parts == 1 ? pool.threads() : plan.items) * plan.sums);
  run_with_slots(pool, plan.items, [&](int64_t item, int64_t slot) {
    const tile::Session session(plan.unit);
    const int64_t kv_item = item / plan.parts, part = item % plan.parts;
    const int64_t b = kv_item / p.kv_heads, kv_head = kv_item % p.kv_heads;
    float* sums = all_sums + (plan.parts == 1 ? slot : item) * plan.sums;
    std::fill(sums, sums + plan.sums, 0.0f);
    const Buffers<T> buffers(plan, base + slot * bytes);
    // Parts take pairs in turn: so each gets early and late stretches of a causal sequence.
    for (int64_t n = part; n < plan.group * plan.stretches; n += plan.parts) {
      const QueryPlace place{b, kv_head * plan.group + n / plan.stretches,
                             n % plan.stretches * plan.stretch};
      pair(call, plan, ranges, place, buffers, sums, sums + plan.sums / 2);
    }
    if (plan.parts == 1) store_sums(call, plan, kv_item, 0, p.keys, sums);
  });
  if (plan.parts == 1) return;
  const int64_t blocks = plan.keys / kBlock;
  pool.run(p.batch * p.kv_heads * blocks, [&](int64_t chunk) {
    combine_parts(call, plan, chunk / blocks, chunk % blocks * kBlock, all_sums);
  });
}

template int64_t backward_tiles_scratch<float>(const AttentionProblem&, int);
template int64_t backward_tiles_scratch<bfloat16>(const AttentionProblem&, int);
template void backward_tiles(ThreadPool&, const AttentionBackward<float>&);
template void backward_tiles(ThreadPool&, const AttentionBackward<bfloat16>&);

}  // namespace ds::kernels

#pragma GCC pop_options
