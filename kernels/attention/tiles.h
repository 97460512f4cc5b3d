// Tile sizes and the layout of scratch, the same for every SIMD target.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/thread_pool.h"
#include "kernels/attention/attention.h"

namespace ds::kernels {

inline constexpr int64_t kQueryBlock = 192;  // queries of one work item
inline constexpr int64_t kKeyTile = 64;      // keys of one tile
inline constexpr int64_t kRowPad = 8;        // rows of keys are padded with zeros to this
inline constexpr int64_t kDimPad = 16;       // head size is padded with zeros to this
inline constexpr int64_t kMaxGroup = 48;     // widest group of queries that a target works on
inline constexpr int64_t kKeySplit = 512;    // keys of one work item when there are few queries

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
inline int64_t padded_dim(const AttentionProblem& p) { return round_up(p.head_dim, kDimPad); }
inline int64_t padded_values(const AttentionProblem& p) {
  return round_up(p.value_size(), kDimPad);
}

// Random bits of a tile for one vector of queries: one more block of four on unaligned rows.
inline constexpr int64_t kBitsFloats = (kKeyTile + 8) * 16;

inline constexpr int64_t kUnit = 64;  // keys of one word of bits
static_assert(kUnit == kKeyTile);     // for whose tiles the ranges of segments are computed

// Bit k of bits[i] says whether dropout keeps element first + i * step + k, for k < kUnit.
void keep_bits(const RandomStream& stream, double probability, uint64_t first, uint64_t step,
               int64_t rows, uint64_t* bits);

// Scratch of forward, in floats.
struct ForwardLayout {
  int64_t rows, qt, acc, k, v, scores, stats, bits, size;
  explicit ForwardLayout(const AttentionProblem& p) {
    const int64_t dim = padded_dim(p), values = padded_values(p);
    int64_t at = 0;
    const auto take = [&](int64_t floats) { return std::exchange(at, at + floats); };
    rows = take(kQueryBlock * std::max(dim, values));
    qt = take(kQueryBlock * dim);
    acc = take(kQueryBlock * values);
    k = take(kKeyTile * dim);
    v = take(kKeyTile * values);
    scores = take(kKeyTile * kMaxGroup);
    stats = take(2 * kQueryBlock);
    bits = take(kBitsFloats);
    size = at;
  }
};

// Scratch of backward without the sums of dk and dv, in floats.
struct BackwardLayout {
  int64_t q, dout, rows, qt, dot, dqt, k, v, scores, dscores, stats, bits, size;
  explicit BackwardLayout(const AttentionProblem& p) {
    const int64_t dim = padded_dim(p), values = padded_values(p);
    int64_t at = 0;
    const auto take = [&](int64_t floats) { return std::exchange(at, at + floats); };
    q = take(kQueryBlock * dim);
    dout = take(kQueryBlock * values);
    rows = take(kQueryBlock * std::max(dim, values));
    qt = take(kQueryBlock * dim);
    dot = take(kQueryBlock * values);
    dqt = take(kQueryBlock * dim);
    k = take(kKeyTile * dim);
    v = take(kKeyTile * values);
    scores = take(kKeyTile * kMaxGroup);
    dscores = take(kKeyTile * kMaxGroup);
    stats = take(2 * kQueryBlock);
    bits = take(kBitsFloats);
    size = at;
  }
};

// How backward is cut. Every work item belongs to one (batch, kv head) and sums dk and dv over its
// part of the (query head, query block) pairs; with enough heads there is one part.
struct BackwardPlan {
  int64_t query_blocks, pairs, parts, items;
  // Floats of dk sums of one item, and with those of dv, which follow them.
  int64_t key_sums, sums;
  explicit BackwardPlan(const AttentionProblem& p) {
    query_blocks = divide_up(p.queries, kQueryBlock);
    pairs = query_blocks * (p.heads / p.kv_heads);
    const int64_t kv_items = p.batch * p.kv_heads;
    constexpr int64_t kEnoughItems = 8, kMostParts = 4;
    parts = std::clamp<int64_t>(divide_up(kEnoughItems, std::max<int64_t>(1, kv_items)), 1,
                                std::clamp<int64_t>(pairs, 1, kMostParts));
    items = kv_items * parts;
    key_sums = round_up(p.keys, kKeyTile) * padded_dim(p);
    sums = key_sums + round_up(p.keys, kKeyTile) * padded_values(p);
  }
};

// The mask of a tile, or null.
inline const uint8_t* tile_mask(const AttentionProblem& p, int64_t b, int64_t first_key) {
  return p.key_mask == nullptr ? nullptr : p.key_mask + b * p.mask_stride + first_key;
}
inline bool all_masked(const uint8_t* mask, int64_t keys) {
  return std::all_of(mask, mask + keys, [](uint8_t visible) { return visible == 0; });
}

// A block of queries of one head.
struct QueryPlace {
  int64_t b, h, first;
};

// Forward for DecodePlan::fits.
template <class T>
void attention_decode(ThreadPool& pool, const AttentionForward<T>& call);

// What this CPU multiplies bf16 tiles with (tile_products.h): AMX, dot products of pairs, or
// nothing. A test that restricts Highway to one instruction set gets that one's code.
enum class TileUnit { kNone, kAmx, kDots };
TileUnit tile_unit();

// Whether products run on tiles: bf16 as it is; fp32 in three parts that lose no precision
// (tile_layouts.h), which pays on AMX alone and for long sequences.
template <class T>
bool on_tiles(const AttentionProblem& p) {
  if constexpr (std::is_same_v<T, float16>) return false;
  const TileUnit unit = tile_unit();
  if constexpr (std::is_same_v<T, bfloat16>) return unit != TileUnit::kNone;
  return unit == TileUnit::kAmx && std::min(p.queries, p.keys) >= kManyQueriesOfCpus;
}

// float and bfloat16, where on_tiles(). Scratch in floats.
template <class T>
int64_t forward_tiles_scratch(const AttentionProblem& p, int threads);
template <class T>
void forward_tiles(ThreadPool& pool, const AttentionForward<T>& call);
template <class T>
int64_t backward_tiles_scratch(const AttentionProblem& p, int threads);
template <class T>
void backward_tiles(ThreadPool& pool, const AttentionBackward<T>& call);

// Runs fn(item, slot) for all items; no two at once have the same slot < pool.threads(). Which slot
// an item gets varies, so items must not read what others left there.
template <class Fn>
void run_with_slots(ThreadPool& pool, int64_t items, const Fn& fn) {
  std::atomic<int64_t> next{0};
  pool.run(std::min<int64_t>(pool.threads(), items), [&](int64_t slot) {
    for (int64_t item = next.fetch_add(1, std::memory_order_relaxed); item < items;
         item = next.fetch_add(1, std::memory_order_relaxed)) {
      fn(item, slot);
    }
  });
}

}  // namespace ds::kernels
