// What a query sees, on a GPU: the band around its own place, its segment, the key mask, and what
// dropout keeps; and the tiles of tokens that are worth a visit.
#pragma once

#include "base/error.h"
#include "kernels/attention/visibility.h"
#include "kernels/cuda/philox.cuh"

namespace ds::kernels::cuda {

inline constexpr int kUnitTokens = 64;

// What is known of 64 tokens in a row: their segments, and whether the key mask shows any or all.
struct alignas(16) TokenUnit {
  int32_t least, most, any, all;
};

// A problem's limits in the numbers of a kernel. Positions are below 2^30.
struct Cover {
  int queries = 0, keys = 0;
  int offset = 0, behind = 0, ahead = 0;  // as in Band
  const uint8_t* mask = nullptr;
  int64_t mask_stride = 0;
  const int32_t* ids = nullptr;
  int64_t id_stride = 0;
  const TokenUnit* units = nullptr;  // [batch, unit_count]; null without mask and segments
  int unit_count = 0;

  __device__ __forceinline__ int clamped(int key) const {
    return key < 0 ? 0 : key > keys ? keys : key;
  }
  __device__ __forceinline__ int first_key(int query) const {
    return clamped(query + offset - behind);
  }
  __device__ __forceinline__ int end_key(int query) const {
    return clamped(query + offset + ahead + 1);
  }
  // Whether queries first_query ... last_query see all of keys first_key ... last_key, as far as
  // the band goes.
  __device__ __forceinline__ bool band_holds(int first_query, int last_query, int first,
                                             int last) const {
    return last - first_query - offset <= ahead && first - last_query - offset >= -behind;
  }
  // Whether the band hides all of the keys from all of the queries.
  __device__ __forceinline__ bool band_hides(int first_query, int last_query, int first,
                                             int last) const {
    return first - last_query - offset > ahead || last - first_query - offset < -behind;
  }
  __device__ __forceinline__ const TokenUnit* units_of(int b) const {
    return units + int64_t{b} * unit_count;
  }
  __device__ __forceinline__ bool masked(int b, int key) const {
    return mask != nullptr && mask[b * mask_stride + key] == 0;
  }
  __device__ __forceinline__ int32_t id(int b, int token) const {
    return ids == nullptr ? 0 : ids[b * id_stride + token];
  }
};

// ---- units ----

inline bool has_units(const AttentionProblem& p) {
  return p.key_mask != nullptr || p.segments != nullptr;
}
inline int64_t unit_count(const AttentionProblem& p) { return divide_up(p.keys, kUnitTokens); }
inline int64_t unit_floats(const AttentionProblem& p) {
  return has_units(p) ? p.batch * unit_count(p) * 4 : 0;
}

// A warp per unit.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    describe_units(Cover cover, TokenUnit* units, int64_t count) {
  const int64_t unit =
      int64_t{blockIdx.x} * (kThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  if (unit >= count) return;
  const auto b = static_cast<int>(unit / cover.unit_count);
  const int first = static_cast<int>(unit % cover.unit_count) * kUnitTokens;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int least = INT32_MAX, most = INT32_MIN, any = 0, all = 1;
#pragma unroll
  for (int i = 0; i < kUnitTokens / kWarp; ++i) {
    const int token = first + i * kWarp + lane;
    if (token >= cover.keys) continue;
    const int id = cover.id(b, token), seen = cover.masked(b, token) ? 0 : 1;
    least = id < least ? id : least;
    most = id > most ? id : most;
    any |= seen;
    all &= seen;
  }
  least = ~warp_max(~least);
  most = warp_max(most);
  any = warp_max(any);
  all = 1 - warp_max(1 - all);
  if (lane == 0) units[unit] = {least, most, any, all};
}

// The limits of a problem; queues what fills the units, in `scratch` of unit_floats().
inline Cover make_cover(const AttentionProblem& p, float* scratch, const GpuStream& on) {
  constexpr int64_t kMost = int64_t{1} << 30;
  DS_CHECK(p.queries + p.keys < kMost, Code::kUnsupported, "attention: ", p.queries,
           " queries and ", p.keys, " keys; a GPU takes fewer than 2^30 together");
  const Band band(p);
  Cover cover;
  cover.queries = static_cast<int>(p.queries);
  cover.keys = static_cast<int>(p.keys);
  cover.offset = static_cast<int>(band.offset);
  cover.behind = static_cast<int>(band.behind);
  cover.ahead = static_cast<int>(band.ahead);
  cover.mask = p.key_mask;
  cover.mask_stride = p.mask_stride;
  cover.ids = p.segments;
  cover.id_stride = p.segment_stride;
  cover.unit_count = static_cast<int>(unit_count(p));
  if (!has_units(p)) return cover;
  auto* const units = reinterpret_cast<TokenUnit*>(scratch);
  constexpr int kThreads = 256;
  const int64_t count = p.batch * cover.unit_count;
  launch(on, "attention", &describe_units<kThreads>, {divide_up(count, kThreads / kWarp), kThreads},
         cover, units, count);
  cover.units = units;
  return cover;
}

// ---- walks over tiles ----

// The segments of a tile of tokens, and whether the mask shows all of them.
struct TileRange {
  int32_t least = 0, most = 0;
  bool any = true, all = true;
};

// `count` tokens of sequence b from `first`, a multiple of the unit, on.
__device__ __forceinline__ TileRange range_of(const Cover& cover, int b, int first, int count) {
  TileRange range;
  if (cover.units == nullptr) return range;
  const TokenUnit* const units = cover.units_of(b);
  int unit = first / kUnitTokens;
  TokenUnit u = units[unit];
  range = {u.least, u.most, u.any != 0, u.all != 0};
  for (++unit; unit < cover.unit_count && unit * kUnitTokens < first + count; ++unit) {
    u = units[unit];
    range.least = u.least < range.least ? u.least : range.least;
    range.most = u.most > range.most ? u.most : range.most;
    range.any = range.any || u.any != 0;
    range.all = range.all && u.all != 0;
  }
  return range;
}

// Finds tiles of kStep tokens, before `end`, that share a segment with `wanted` and, if they are
// keys, are not all masked. Without kLooks every tile is worth a visit. All threads of a block walk
// together.
template <int kStep, bool kKeys, bool kLooks>
struct Walk {
  int end;
  TileRange wanted;

  // The first token of the first tile of sequence b at or after `at`, a multiple of kStep; or -1.
  __device__ __forceinline__ int from(const Cover& cover, int b, int at) const {
    static_assert(kUnitTokens % kStep == 0);
    if constexpr (kLooks) {
      const bool hides = kKeys ? cover.units != nullptr : cover.ids != nullptr;
      for (; hides && at < end; at += kWarp * kStep) {
        const int tile = at + static_cast<int>(threadIdx.x) % kWarp * kStep;
        bool meets = false;
        if (tile < end) {
          const TokenUnit u = cover.units_of(b)[tile / kUnitTokens];
          meets = u.least <= wanted.most && wanted.least <= u.most && (!kKeys || u.any != 0);
        }
        const unsigned found = __ballot_sync(kAllLanes, meets);
        if (found != 0) return at + (__ffs(static_cast<int>(found)) - 1) * kStep;
      }
    }
    return at < end ? at : -1;
  }
};

// ---- single pairs of query and key ----

// A token's segment, or what differs from every note of the other side.
inline constexpr int64_t kUnseenOwn = int64_t{1} << 40, kUnseenOther = int64_t{2} << 40;

// ---- dropout ----

struct Dropout {
  bool active = false;
  uint32_t threshold = 0;
  float factor = 1;  // of what is kept
  int64_t first_head = 0;
  RandomStream stream;

  explicit Dropout(const AttentionProblem& p)
      : active(p.dropout > 0),
        threshold(dropout_threshold(p.dropout)),
        factor(static_cast<float>(1 / (1 - p.dropout))),
        first_head(p.first_head),
        stream(p.stream) {}

  // The random element of a pair, as AttentionProblem::row_element has it.
  __device__ __forceinline__ uint64_t element(int64_t b, int64_t head, const Cover& cover,
                                              int query, int key) const {
    const uint64_t row =
        static_cast<uint64_t>(first_head + head) * static_cast<uint64_t>(cover.queries) +
        static_cast<uint64_t>(query);
    return (static_cast<uint64_t>(b) << RandomStream::kSampleBits) +
           row * static_cast<uint64_t>(cover.keys) + static_cast<uint64_t>(key);
  }
};

// Which of kQueries x kKeys pairs are kept: four keys of a random block in every byte.
template <int kQueries, int kKeys>
struct KeptBits {
  static constexpr int kBytes = kKeys / 4 + 1, kSize = kQueries * kBytes;

  // `first` is the random element of the first pair; rows of queries are `keys` elements apart.
  template <int kThreads>
  static __device__ __forceinline__ void fill(const Dropout& dropout, uint64_t first, uint64_t keys,
                                              uint8_t* kept) {
    for (int item = static_cast<int>(threadIdx.x); item < kSize; item += kThreads) {
      const int query = item / kBytes, block = item % kBytes;
      const uint64_t element = first + static_cast<uint64_t>(query) * keys;
      const Random4 random =
          random_block(dropout.stream, element / 4 + static_cast<uint64_t>(block));
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) bits |= random.at[i] >= dropout.threshold ? 1u << i : 0u;
      kept[item] = static_cast<uint8_t>(bits);
    }
  }
  static __device__ __forceinline__ bool at(const uint8_t* kept, uint64_t first, uint64_t keys,
                                            int query, int key) {
    const unsigned start =
        static_cast<unsigned>(first) + static_cast<unsigned>(query) * static_cast<unsigned>(keys);
    const unsigned place = start % 4 + static_cast<unsigned>(key);
    return (kept[static_cast<unsigned>(query) * kBytes + place / 4] >> place % 4 & 1) != 0;
  }
};

// Whether segments or key masks hide pairs of the queries, whose segments are `wanted`, and a tile
// of keys; then the keys' segments.
template <class Tile>
__device__ __forceinline__ bool find_key_segments(const Cover& cover, int b, int tile,
                                                  const TileRange& wanted, int64_t* segments) {
  const TileRange range = range_of(cover, b, tile, Tile::kOther);
  const bool hides = !range.all || wanted.least != wanted.most || range.least != range.most;
  for (int i = static_cast<int>(threadIdx.x); hides && i < Tile::kOther; i += Tile::kThreads) {
    const int key = tile + i;
    const bool there = key < cover.keys && !cover.masked(b, key);
    segments[i] = there ? cover.id(b, key) : kUnseenOther;
  }
  return hides;
}

// A tile of keys, the stage that it lies in, and what hides pairs of it.
struct KeyStage {
  int tile, stage;
  bool with_segments, drops;
};

}  // namespace ds::kernels::cuda
