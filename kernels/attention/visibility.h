// Which keys a query sees: the band around its own place, its segment, the key mask; and the tiles
// of keys that are worth a visit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/tiles.h"

namespace ds::kernels {

// Query i sees keys from i + offset - behind to i + offset + ahead, if nothing else hides them.
struct Band {
  int64_t offset, behind, ahead, keys;
  explicit Band(const AttentionProblem& p) : Band(p, p.keys) {}
  Band(const AttentionProblem& p, int64_t count) : offset(count - p.queries), keys(count) {
    const int64_t unlimited = count + p.queries;
    const int64_t reach = p.window > 0 ? std::min(p.window - 1, unlimited) : unlimited;
    behind = reach;
    ahead = p.causal ? 0 : reach;
  }
  // Both grow with the query.
  int64_t first_key(int64_t query) const {
    return std::clamp<int64_t>(query + offset - behind, 0, keys);
  }
  int64_t end_key(int64_t query) const {
    return std::clamp<int64_t>(query + offset + ahead + 1, 0, keys);
  }
};

// The least and the largest segment among some tokens.
struct SegmentRange {
  int32_t least, most;
  static SegmentRange of(const int32_t* ids, int64_t n) {
    const auto [low, high] = std::minmax_element(ids, ids + n);
    return {*low, *high};
  }
  bool meets(const SegmentRange& other) const { return least <= other.most && other.least <= most; }
  bool single() const { return least == most; }
};
static_assert(sizeof(SegmentRange) == 2 * sizeof(float));

// Scratch for the ranges of all tiles of keys, in floats.
inline int64_t segment_floats(const AttentionProblem& p) {
  return p.segments == nullptr ? 0 : 2 * p.batch * divide_up(p.keys, kKeyTile);
}
// Fills them and returns the first of batch 0, or null without segments.
inline const SegmentRange* fill_segment_ranges(const AttentionProblem& p, float* scratch) {
  if (p.segments == nullptr) return nullptr;
  auto* const ranges = reinterpret_cast<SegmentRange*>(scratch);
  SegmentRange* to = ranges;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t key = 0; key < p.keys; key += kKeyTile) {
      *to++ = SegmentRange::of(p.segments + b * p.segment_stride + key,
                               std::min(kKeyTile, p.keys - key));
    }
  }
  return ranges;
}

// Visits the tiles of keys that some query of a block may see: for (KeyTiles tile(...);
// tile.next();).
struct KeyTiles {
  int64_t first_key = 0, keys = 0;
  const uint8_t* mask = nullptr;      // of the tile, or null
  const int32_t* segments = nullptr;  // of the tile, or null
  SegmentRange range{};               // of the segments

  // `ranges` are those of fill_segment_ranges, `wanted` is the range of the queries.
  KeyTiles(const AttentionProblem& problem, const Band& band, const SegmentRange* all_ranges,
           int64_t b, int64_t first_query, int64_t queries, const SegmentRange& wanted)
      : p_(problem), b_(b), wanted_(wanted) {
    next_key_ = band.first_key(first_query) / kKeyTile * kKeyTile;
    end_ = band.end_key(first_query + queries - 1);
    if (all_ranges != nullptr) ranges_ = all_ranges + b * divide_up(p_.keys, kKeyTile);
  }

  bool next() {
    for (; next_key_ < end_; next_key_ += kKeyTile) {
      if (ranges_ != nullptr && !wanted_.meets(ranges_[next_key_ / kKeyTile])) continue;
      first_key = next_key_;
      keys = std::min(kKeyTile, end_ - first_key);
      mask = tile_mask(p_, b_, first_key);
      if (mask != nullptr && all_masked(mask, keys)) continue;
      if (ranges_ != nullptr) {
        range = ranges_[first_key / kKeyTile];
        segments = p_.segments + b_ * p_.segment_stride + first_key;
      }
      next_key_ += kKeyTile;
      return true;
    }
    return false;
  }

 private:
  const AttentionProblem& p_;
  int64_t b_, next_key_ = 0, end_ = 0;
  const SegmentRange* ranges_ = nullptr;
  SegmentRange wanted_;
};

// The path for few queries, which is that of generation: a work item is one kv head and one split
// of the keys. Partial results (maximum, sum, weighted values) are kept when there are more splits.
struct DecodePlan {
  static constexpr int64_t kRows = 4;    // query rows that share one pass over keys and values
  static constexpr int64_t kStats = 16;  // floats before the values of a partial result
  int64_t first_key, end_key;            // what any of the queries sees
  int64_t rows_per_item, items, splits;
  int64_t room;              // splits that partial results have room for
  int64_t scratch, partial;  // floats per thread, floats of one partial result
  explicit DecodePlan(const AttentionProblem& p) : DecodePlan(p, p.keys) {}
  // What a sequence has of the plan: where there are several lengths, that of all is made for the
  // longest.
  DecodePlan of(const AttentionProblem& p, int64_t b) const {
    if (p.past == nullptr) return *this;
    DecodePlan own(p, p.keys_of(b));
    own.room = room;
    return own;
  }
  int64_t total(const AttentionProblem& p, int threads) const {
    return threads * scratch + (splits > 1 ? p.batch * p.heads * p.queries * splits * partial : 0);
  }
  static bool fits(const AttentionProblem& p) {
    return p.queries <= kFewQueriesOfCpus && p.dropout == 0 && p.segments == nullptr;
  }

 private:
  DecodePlan(const AttentionProblem& p, int64_t keys) {
    const Band band(p, keys);
    first_key = band.first_key(0);
    end_key = std::max(first_key, band.end_key(p.queries - 1));
    rows_per_item = p.heads / p.kv_heads * p.queries;
    room = splits = std::max<int64_t>(1, divide_up(end_key - first_key, kKeySplit));
    items = p.batch * p.kv_heads * splits;
    partial = kStats + padded_values(p);
    scratch = kRows * (kKeySplit + padded_dim(p) + padded_values(p));
  }
};

}  // namespace ds::kernels
