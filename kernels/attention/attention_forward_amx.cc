// Attention forward on bf16 tiles: online softmax over panels of keys. A work item is a range of
// queries of one (batch, kv head): keys and values are packed once for all of its query heads, a
// stretch that stays in the second cache level at a time.
#include <cmath>
#include <limits>

#include "kernels/attention/amx.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/cover.h"
#include "kernels/attention/scratch.h"
#include "kernels/cpu.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace ds::kernels {
namespace {

using amx::kResult;
using amx::kSide;
using amx::kTerms;
using amx::kTile;

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 32;  // queries whose scores are computed together

// Keys whose scores are computed together; scores and weights fill half of the first cache level.
template <class T>
constexpr int64_t kPanel = amx::kParts<T> == 1 ? 128 : 64;

struct Plan {
  int64_t dim;     // padded head size
  int64_t group;   // query heads of a kv head
  int64_t range;   // queries of an item, a multiple of kBlock
  int64_t ranges;  // per kv head
  int64_t items;
  int64_t stretch;  // keys packed at once, a multiple of every panel

  explicit Plan(const AttentionProblem& p) {
    constexpr int64_t kEnoughItems = 16, kLeastRange = 256, kPacked = 65536, kKept = 131072;
    dim = round_up(p.head_dim, kTerms);
    group = p.heads / p.kv_heads;
    const int64_t kv_items = std::max<int64_t>(1, p.batch * p.kv_heads);
    const int64_t wanted = std::clamp<int64_t>(divide_up(kEnoughItems, kv_items), 1,
                                               divide_up(p.queries, kLeastRange));
    // Values of all queries of an item are kept between stretches of keys.
    const int64_t most = std::max(kBlock, kKept / (dim * group) / kBlock * kBlock);
    range = std::min(round_up(divide_up(p.queries, wanted), kBlock), most);
    ranges = divide_up(p.queries, range);
    items = kv_items * ranges;
    stretch = std::min(kPacked / dim / 128 * 128, round_up(p.keys, 128));
  }
};

// Of one thread.
template <class T>
struct Buffers {
  static constexpr int64_t kN = amx::kParts<T>;
  uint16_t *keys, *values, *queries, *weights;
  float *scores, *rows, *sums, *tops, *out;
  int64_t bytes;

  Buffers(const Plan& plan, std::byte* base) {
    Scratch scratch(base);
    const int64_t kept = plan.group * plan.range;
    keys = scratch.take<uint16_t>(plan.stretch * plan.dim * kN);
    values = scratch.take<uint16_t>(plan.stretch * plan.dim * kN);
    queries = scratch.take<uint16_t>(kBlock * plan.dim * kN);
    weights = scratch.take<uint16_t>(kBlock * kPanel<T> * kN);
    scores = scratch.take<float>(kBlock * kPanel<T>);
    rows = scratch.take<float>(kResult);
    tops = scratch.take<float>(kept);            // largest scaled score so far
    sums = scratch.take<float>(kept * kSide);    // sums of weights by lane
    out = scratch.take<float>(kept * plan.dim);  // result tiles [query / 16][channel / 16]
    bytes = scratch.bytes();
  }
};

// Scores of a block against keys that start at tile `keys`: results [2][width / 16].
template <class T>
void score(const uint16_t* queries, const uint16_t* keys, int64_t dim, int64_t width,
           float* scores) {
  constexpr int64_t kN = amx::kParts<T>, kStep = kN * kTile;
  const int64_t steps = dim / kTerms, across = width / kSide;
  for (int64_t n = 0; n < across; n += 2) {
    amx::zero_sums();
    for (int64_t s = 0; s < steps; ++s) {
      amx::add_products<kN>(queries + s * kStep, queries + (steps + s) * kStep,
                            keys + (n * steps + s) * kStep, keys + ((n + 1) * steps + s) * kStep);
    }
    float* to = scores + n * kResult;
    amx::store_sums(to, to + kResult, to + across * kResult, to + (across + 1) * kResult);
  }
}

// What a panel hides, and what dropout keeps of it: words [unit][query of the block].
struct PanelBits {
  bool hides = false, drops = false;
  uint64_t visible[2][kBlock], kept[2][kBlock];

  static __mmask16 lanes(const uint64_t (&words)[2][kBlock], int64_t row, int64_t column) {
    return static_cast<__mmask16>(words[column / 4][row] >> (column % 4 * kSide));
  }
};

// Turns scores of 16 queries into weights relative to their maxima and brings what is kept of
// earlier panels to those.
template <class T, bool kDrop>
void soften(const PanelBits& bits, int64_t first_row, int64_t across, float factor, int64_t dim,
            float* scores, uint16_t* weights, float* rows, float* tops, float* sums, float* out) {
  constexpr int kN = amx::kParts<T>;
  const __m512 none = _mm512_set1_ps(kMinusInfinity), scale = _mm512_set1_ps(factor);
  if (bits.hides) {
    for (int64_t r = 0; r < kSide; ++r) {
      for (int64_t t = 0; t < across; ++t) {
        const auto hidden =
            static_cast<__mmask16>(~PanelBits::lanes(bits.visible, first_row + r, t));
        _mm512_mask_store_ps(scores + t * kResult + r * kSide, hidden, none);
      }
    }
  }
  for (int64_t r = 0; r < kSide; ++r) {
    const float* at = scores + r * kSide;
    __m512 top0 = _mm512_load_ps(at), top1 = _mm512_load_ps(at + kResult);
    for (int64_t t = 2; t < across; t += 2) {
      top0 = _mm512_max_ps(top0, _mm512_load_ps(at + t * kResult));
      top1 = _mm512_max_ps(top1, _mm512_load_ps(at + (t + 1) * kResult));
    }
    _mm512_store_ps(rows + r * kSide, _mm512_max_ps(top0, top1));
  }
  const __m512 old = _mm512_load_ps(tops);
  const __m512 top = _mm512_max_ps(old, _mm512_mul_ps(amx::row_maxima(rows), scale));
  // A query that has seen nothing yet: any finite reference makes all its weights 0.
  const __m512 reference =
      _mm512_mask_mov_ps(top, _mm512_cmp_ps_mask(top, none, _CMP_EQ_OQ), _mm512_setzero_ps());
  alignas(64) float references[kSide];
  _mm512_store_ps(references, reference);
  _mm512_store_ps(tops, top);
  // Where nothing was seen before, sums and values are 0.
  const __mmask16 grown =
      _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(old, none, _CMP_NEQ_UQ), top, old, _CMP_NEQ_UQ);
  if (grown != 0) {
    alignas(64) float shrink[kSide];
    _mm512_store_ps(shrink, amx::exp2<kN>(_mm512_sub_ps(old, reference)));
    for (int64_t r = 0; r < kSide; ++r) {
      const __m512 by = _mm512_set1_ps(shrink[r]);
      float* sum = sums + r * kSide;
      _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), by));
      for (float* at = out + r * kSide; at < out + kSide * dim; at += kResult) {
        _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), by));
      }
    }
  }
  for (int64_t r = 0; r < kSide; ++r) {
    const __m512 own = _mm512_set1_ps(references[r]);
    __m512 sum0 = _mm512_load_ps(sums + r * kSide), sum1 = _mm512_setzero_ps();
    for (int64_t t = 0; t < across; t += 2) {
      const float* at = scores + t * kResult + r * kSide;
      __m512 low = amx::exp2<kN>(_mm512_fmsub_ps(_mm512_load_ps(at), scale, own));
      __m512 high = amx::exp2<kN>(_mm512_fmsub_ps(_mm512_load_ps(at + kResult), scale, own));
      sum0 = _mm512_add_ps(sum0, low);
      sum1 = _mm512_add_ps(sum1, high);
      if constexpr (kDrop) {
        low = _mm512_maskz_mov_ps(PanelBits::lanes(bits.kept, first_row + r, t), low);
        high = _mm512_maskz_mov_ps(PanelBits::lanes(bits.kept, first_row + r, t + 1), high);
      }
      __m512i part[kN];
      amx::split<kN>(low, high, part);
      for (int i = 0; i < kN; ++i) {
        _mm512_store_si512(weights + (t / 2 * kN + i) * kTile + r * kTerms, part[i]);
      }
    }
    _mm512_store_ps(sums + r * kSide, _mm512_add_ps(sum0, sum1));
  }
}

// Adds weights times values to a block's results.
template <class T>
void weigh(const uint16_t* weights, const uint16_t* values, int64_t dim, int64_t width,
           float* out) {
  constexpr int64_t kN = amx::kParts<T>, kStep = kN * kTile;
  const int64_t steps = width / kTerms, across = dim / kSide;
  for (int64_t n = 0; n < across; n += 2) {
    float* sums = out + n * kResult;
    float* lower = sums + across * kResult;
    amx::load_sums(sums, sums + kResult, lower, lower + kResult);
    for (int64_t s = 0; s < steps; ++s) {
      const uint16_t* right = values + (s * across + n) * kStep;
      amx::add_products<kN>(weights + s * kStep, weights + (steps + s) * kStep, right,
                            right + kStep);
    }
    amx::store_sums(sums, sums + kResult, lower, lower + kResult);
  }
}

// Divides by the sums and writes values and logarithms of a block.
template <class T>
void finish(const ForwardCall<T>& call, int64_t b, int64_t h, int64_t first, int64_t dim,
            const float* tops, const float* sums, const float* out) {
  const AttentionProblem& p = call.p;
  const int64_t count = std::min(kBlock, p.queries - first);
  const __m512 keep = _mm512_set1_ps(static_cast<float>(1 / (1 - p.dropout)));
  alignas(64) float totals[kSide], factors[kSide];
  for (int64_t row = 0; row < count; ++row) {
    const int64_t r = row % kSide;
    if (r == 0) {
      const __m512 total = amx::row_sums(sums + row * kSide);
      const __mmask16 some = _mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      _mm512_store_ps(totals, total);
      _mm512_store_ps(factors, _mm512_maskz_div_ps(some, keep, total));
    }
    const __m512 factor = _mm512_set1_ps(factors[r]);
    const float* from = out + row / kSide * kSide * dim + r * kSide;
    T* to = call.out.at(b, first + row, h);
    for (int64_t d = 0; d < p.head_dim; d += 32, from += 2 * kResult) {
      amx::store_row(_mm512_mul_ps(_mm512_load_ps(from), factor),
                     _mm512_mul_ps(_mm512_load_ps(from + kResult), factor), p.head_dim - d, to + d);
    }
    if (call.lse == nullptr) continue;
    call.lse[(b * p.heads + h) * p.queries + first + row] =
        totals[r] == 0 ? kMinusInfinity : tops[row] * kLn2 + std::log(totals[r]);
  }
}

// One block against the packed keys [first_key, end_key).
template <class T>
void block(const ForwardCall<T>& call, const Plan& plan, const Buffers<T>& buffers,
           const Cover& cover, int64_t b, int64_t h, int64_t first_query, int64_t first_key,
           int64_t end_key, float* tops, float* sums, float* out) {
  constexpr int64_t kN = amx::kParts<T>;
  const AttentionProblem& p = call.p;
  const float factor = std::max(std::abs(p.scale) * kLog2E, 1e-30f);
  const int64_t count = std::min(kBlock, p.queries - first_query);
  const int64_t end = std::min(end_key, cover.end_key());
  PanelBits bits{};
  bool packed = false;
  for (int64_t key = std::max(first_key, cover.first_key() / kUnit * kUnit); key < end;) {
    const Seen seen = cover.unit(key);
    if (seen == Seen::kNothing) {
      key += kUnit;
      continue;
    }
    // The panel: this unit and the next where they are seen.
    Seen next = Seen::kNothing;
    if (kPanel < T >> kUnit && key + kUnit < end) next = cover.unit(key + kUnit);
    const int64_t units = next == Seen::kNothing ? 1 : 2;
    const int64_t width = round_up(std::min(units * kUnit, end - key), kTerms);
    bits.hides = seen == Seen::kSome || next == Seen::kSome;
    if (bits.hides) {
      std::fill(bits.visible[0], bits.visible[0] + 2 * kBlock, uint64_t{0});
      for (int64_t u = 0; u < units; ++u) cover.bits(key + u * kUnit, bits.visible[u]);
    }
    bits.drops = p.dropout > 0;
    for (int64_t u = 0; bits.drops && u < units; ++u) {
      keep_bits(p.stream, p.dropout,
                p.row_element(b, h, first_query) + static_cast<uint64_t>(key + u * kUnit),
                static_cast<uint64_t>(p.keys), count, bits.kept[u]);
    }
    if (!packed) {
      const amx::Rows<T> rows{
          call.q.at(b, first_query, h), call.q.token, count, p.head_dim, nullptr, p.scale < 0};
      amx::pack_left(rows, kBlock, plan.dim, buffers.queries);
      packed = true;
    }
    const int64_t offset = (key - first_key) * plan.dim * kN;
    score<T>(buffers.queries, buffers.keys + offset, plan.dim, width, buffers.scores);
    for (int64_t row = 0; row < kBlock; row += kSide) {
      const auto soft = bits.drops ? soften<T, true> : soften<T, false>;
      soft(bits, row, width / kSide, factor, plan.dim, buffers.scores + row * width,
           buffers.weights + row * width * kN, buffers.rows, tops + row, sums + row * kSide,
           out + row * plan.dim);
    }
    weigh<T>(buffers.weights, buffers.values + offset, plan.dim, width, out);
    key += units * kUnit;
  }
}

template <class T>
void range(const ForwardCall<T>& call, const Plan& plan, const SegmentRange* ranges, int64_t b,
           int64_t kv_head, int64_t first_query, const Buffers<T>& buffers) {
  const AttentionProblem& p = call.p;
  const AmxTiles tiles;
  const Band band(p);
  const int64_t queries = std::min(plan.range, p.queries - first_query);
  const int64_t blocks = divide_up(queries, kBlock), kept = plan.group * plan.range;
  std::fill(buffers.tops, buffers.tops + kept, kMinusInfinity);
  std::fill(buffers.sums, buffers.sums + kept * kSide, 0.0f);
  std::fill(buffers.out, buffers.out + kept * plan.dim, 0.0f);
  const Cover whole(p, band, ranges, b, first_query, queries);
  const int64_t end = whole.end_key();
  for (int64_t key = whole.first_key() / kUnit * kUnit; key < end; key += plan.stretch) {
    const int64_t stop = std::min(end, key + plan.stretch);
    // Keys that no query sees are packed as zeros, whatever they hold.
    amx::Rows<T> rows{call.k.at(b, key, kv_head), call.k.token, stop - key, p.head_dim,
                      tile_mask(p, b, key)};
    const int64_t padded = round_up(stop - key, kTerms);
    amx::pack_right(rows, padded, plan.dim, buffers.keys);
    rows.data = call.v.at(b, key, kv_head);
    rows.stride = call.v.token;
    amx::pack_pairs(rows, padded, plan.dim, buffers.values);
    for (int64_t g = 0; g < plan.group; ++g) {
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t first = first_query + i * kBlock, at = g * plan.range + i * kBlock;
        const Cover cover(p, band, ranges, b, first, std::min(kBlock, p.queries - first));
        block(call, plan, buffers, cover, b, kv_head * plan.group + g, first, key, stop,
              buffers.tops + at, buffers.sums + at * kSide, buffers.out + at * plan.dim);
      }
    }
  }
  for (int64_t g = 0; g < plan.group; ++g) {
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t at = g * plan.range + i * kBlock;
      finish(call, b, kv_head * plan.group + g, first_query + i * kBlock, plan.dim,
             buffers.tops + at, buffers.sums + at * kSide, buffers.out + at * plan.dim);
    }
  }
}

}  // namespace

template <class T>
int64_t forward_tiles_scratch(const AttentionProblem& p, int threads) {
  const Plan plan(p);
  return threads * Buffers<T>(plan, nullptr).bytes / 4 + Scratch::kAlignment / 4 +
         segment_floats(p);
}

template <class T>
void forward_tiles(ThreadPool& pool, const ForwardCall<T>& call) {
  const AttentionProblem& p = call.p;
  const Plan plan(p);
  std::byte* base = Scratch::aligned(call.workspace);
  const int64_t bytes = Buffers<T>(plan, nullptr).bytes;
  const SegmentRange* ranges =
      fill_segment_ranges(p, reinterpret_cast<float*>(base + pool.threads() * bytes));
  // Ranges at the end of a causal sequence see most keys: the short items come last.
  run_with_slots(pool, plan.items, [&](int64_t item, int64_t slot) {
    const int64_t kv_item = item / plan.ranges;
    const int64_t first = (plan.ranges - 1 - item % plan.ranges) * plan.range;
    range(call, plan, ranges, kv_item / p.kv_heads, kv_item % p.kv_heads, first,
          Buffers<T>(plan, base + slot * bytes));
  });
}

template int64_t forward_tiles_scratch<float>(const AttentionProblem&, int);
template int64_t forward_tiles_scratch<bfloat16>(const AttentionProblem&, int);
template void forward_tiles(ThreadPool&, const ForwardCall<float>&);
template void forward_tiles(ThreadPool&, const ForwardCall<bfloat16>&);

}  // namespace ds::kernels

#pragma GCC pop_options
