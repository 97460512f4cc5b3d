// Masks, exponentials and dropout of a tile of scores whose rows are keys and whose lanes are
// queries. Scores are in units of log 2. Included once per SIMD target.
#if defined(DS_KERNELS_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_ATTENTION_SOFTMAX_INL_H_
#undef DS_KERNELS_ATTENTION_SOFTMAX_INL_H_
#else
#define DS_KERNELS_ATTENTION_SOFTMAX_INL_H_
#endif

#include <limits>

#include "base/philox.h"
#include "kernels/attention/gemm-inl.h"
#include "kernels/attention/visibility.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// 2^x for x <= 128 within 2 ulp; exactly 0 from -127 down (and at -infinity), 1 at 0, NaN at NaN.
HWY_INLINE VF exp2(VF x) {
  const DF f;
  const hn::RebindToUnsigned<DF> u;
#if HWY_TARGET == HWY_EMU128
  x = hn::IfThenElse(hn::Lt(x, hn::Set(f, -127.0f)), hn::Set(f, -127.0f), x);
#else
  x = hn::Max(hn::Set(f, -127.0f), x);  // in this order a NaN comes through
#endif
  // Adding 1.5 * 2^23 + 127 leaves the rounded x + 127, the exponent of 2^x, in the lowest bits.
  const VF magic = hn::Set(f, 12583039.0f);
  const VF shifted = hn::Add(x, magic);
  const VF r = hn::Sub(x, hn::Sub(shifted, magic));
  const VF power = hn::BitCast(f, hn::ShiftLeft<23>(hn::BitCast(u, shifted)));
  // Minimax fit of 2^r on [-1/2, 1/2] that is 1 at 0, relative error 1e-8.
  VF y = hn::Set(f, 0.000158494411f);
  y = hn::MulAdd(y, r, hn::Set(f, 0.00134193187f));
  y = hn::MulAdd(y, r, hn::Set(f, 0.00961702596f));
  y = hn::MulAdd(y, r, hn::Set(f, 0.0555027276f));
  y = hn::MulAdd(y, r, hn::Set(f, 0.240226552f));
  y = hn::MulAdd(y, r, hn::Set(f, 0.693147242f));
  y = hn::MulAdd(y, r, hn::Set(f, 1.0f));
  return hn::Mul(y, power);
}

// `queries` lanes from query first_query against keys [first_key, first_key + keys). Nothing when
// all keys lie before what the first query sees.
HWY_INLINE Visible visible_keys(const Band& band, int64_t first_query, int64_t queries,
                                int64_t first_key, int64_t keys) {
  Visible see;
  if (band.first_key(first_query) >= first_key + keys) return see;
  see.vectors = static_cast<int>(std::min<int64_t>(kVectors, divide_up(queries, kLanes)));
  for (int n = 0; n < see.vectors; ++n) {
    const int64_t last = first_query + std::min((n + 1) * kLanes, queries) - 1;
    see.rows[n] = round_up(std::clamp<int64_t>(band.end_key(last) - first_key, 0, keys), kRowPad);
  }
  return see;
}

// The segments of a query block, padded to whole vectors.
struct QuerySegments {
  HWY_ALIGN int32_t ids[kQueryBlock];
  SegmentRange all{};
  SegmentRange groups[kQueryBlock / kGroup];

  void load(const AttentionProblem& p, int64_t b, int64_t first_query, int64_t queries) {
    if (p.segments == nullptr) return;
    const int32_t* from = p.segments + b * p.segment_stride + first_query;
    std::copy(from, from + queries, ids);
    std::fill(ids + queries, ids + kQueryBlock, ids[queries - 1]);
    all = SegmentRange::of(ids, queries);
    for (int64_t g = 0; g < kQueryBlock / kGroup; ++g) {
      groups[g] = SegmentRange::of(ids + g * kGroup, kGroup);
    }
  }
};

HWY_INLINE void apply_mask(hn::Mask<DF> lanes, float* scores) {
  const DF f;
  hn::Store(hn::IfThenElse(lanes, hn::Set(f, kMinusInfinity), hn::Load(f, scores)), f, scores);
}

// Hides rows outside the band of each lane; `own` is the row at the place of lane 0's query.
HWY_INLINE void mask_band(const Visible& see, const Band& band, int64_t own, float* scores) {
  const DF f;
  const hn::RebindToSigned<DF> di;
  const auto lane = hn::Iota(di, 0);
  for (int n = 0; n < see.vectors; ++n) {
    float* column = scores + n * kLanes;
    // Lane i sees rows from first + i to last + i.
    const int64_t first = own - band.behind + n * kLanes, last = own + band.ahead + n * kLanes;
    for (int64_t row = 0; row < std::min(see.rows[n], first + kLanes - 1); ++row) {
      const auto limit = static_cast<int32_t>(std::max<int64_t>(row - first, -1));
      apply_mask(hn::RebindMask(f, hn::Gt(lane, hn::Set(di, limit))), column + row * kGroup);
    }
    for (int64_t row = std::max<int64_t>(0, last + 1); row < see.rows[n]; ++row) {
      const auto limit = static_cast<int32_t>(std::min<int64_t>(row - last, kKeyTile + 1));
      apply_mask(hn::RebindMask(f, hn::Lt(lane, hn::Set(di, limit))), column + row * kGroup);
    }
  }
}

// Sets scores that must not count to -infinity: rows beyond the keys or masked, outside the band of
// the queries from first_query on, or of other segments than those of the group at `lane`.
HWY_NOINLINE inline void mask_tile(const Visible& see, const Band& band, const KeyTiles& tile,
                                   const QuerySegments& segments, int64_t first_query, int64_t lane,
                                   float* scores) {
  const DF f;
  const hn::RebindToSigned<DF> di;
  mask_band(see, band, first_query + band.offset - tile.first_key, scores);
  const int64_t rows = see.most();
  if (tile.segments != nullptr &&
      !(tile.range.single() && segments.groups[lane / kGroup].single())) {  // they meet
    for (int64_t row = 0; row < std::min(rows, tile.keys); ++row) {
      const auto id = hn::Set(di, tile.segments[row]);
      for (int n = see.first_at(row); n < see.vectors; ++n) {
        const auto other = hn::Ne(hn::Load(di, segments.ids + lane + n * kLanes), id);
        apply_mask(hn::RebindMask(f, other), scores + row * kGroup + n * kLanes);
      }
    }
  }
  const VF hidden = hn::Set(f, kMinusInfinity);
  for (int64_t row = tile.mask != nullptr ? 0 : tile.keys; row < rows; ++row) {
    if (row < tile.keys && tile.mask[row] != 0) continue;
    for (int n = see.first_at(row); n < see.vectors; ++n) {
      hn::Store(hidden, f, scores + row * kGroup + n * kLanes);
    }
  }
}

// Random bits of dropout for one vector of queries against a tile of keys.
class TileBits {
 public:
  TileBits(const RandomStream& stream, double probability)
      : op_(stream.op),
        step_(stream.step),
        first_block_(uint64_t{stream.sample} << 32),
        threshold_(dropout_threshold(probability)) {
    uint32_t k0 = static_cast<uint32_t>(stream.seed);
    uint32_t k1 = static_cast<uint32_t>(stream.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      keys_[round][0] = k0;
      keys_[round][1] = k1;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  // bits[row][lane] for rows < `rows`: the number of element first + lane * lane_step + row. The
  // counter of a lane is its own, so lanes that do not start a block of four are shifted after.
  HWY_NOINLINE void fill(uint64_t first, uint64_t lane_step, int64_t rows, uint32_t* bits) const {
    const hn::Repartition<uint64_t, DF> d64;
    const hn::RebindToUnsigned<DF> d32;
    constexpr int64_t kPairs = kLanes / 2;
    HWY_ALIGN uint64_t even_blocks[kPairs];
    HWY_ALIGN uint64_t odd_blocks[kPairs];
    HWY_ALIGN uint32_t skips[kLanes];
    uint32_t any_skip = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t element = first + static_cast<uint64_t>(lane) * lane_step;
      (lane % 2 == 0 ? even_blocks : odd_blocks)[lane / 2] = first_block_ + element / 4;
      skips[lane] = static_cast<uint32_t>(element % 4);
      any_skip |= skips[lane];
    }
    auto even_block = hn::Load(d64, even_blocks), odd_block = hn::Load(d64, odd_blocks);
    const int64_t needed = any_skip != 0 ? rows + 3 : rows;
    for (int64_t row = 0; row < needed; row += 4) {
      block(even_block, odd_block, bits + row * kLanes);
      even_block = hn::Add(even_block, hn::Set(d64, uint64_t{1}));
      odd_block = hn::Add(odd_block, hn::Set(d64, uint64_t{1}));
    }
    if (any_skip == 0) return;
    const auto skip = hn::Load(d32, skips);
    const auto is1 = hn::Eq(skip, hn::Set(d32, 1u)), is2 = hn::Eq(skip, hn::Set(d32, 2u));
    const auto is3 = hn::Eq(skip, hn::Set(d32, 3u));
    for (int64_t row = 0; row < rows; ++row) {
      uint32_t* at = bits + row * kLanes;
      auto value = hn::Load(d32, at);
      value = hn::IfThenElse(is1, hn::Load(d32, at + kLanes), value);
      value = hn::IfThenElse(is2, hn::Load(d32, at + 2 * kLanes), value);
      value = hn::IfThenElse(is3, hn::Load(d32, at + 3 * kLanes), value);
      hn::Store(value, d32, at);
    }
  }

  // x where the element is kept, 0 where it is dropped.
  HWY_INLINE VF kept(VF x, const uint32_t* bits) const {
    const DF f;
    const hn::RebindToUnsigned<DF> d32;
    const auto drop = hn::Lt(hn::Load(d32, bits), hn::Set(d32, threshold_));
    return hn::IfThenZeroElse(hn::RebindMask(f, drop), x);
  }

 private:
  using V64 = hn::Vec<hn::Repartition<uint64_t, DF>>;

  // Four rows of random bits, one Philox block per lane. Blocks of even and odd lanes run in
  // 64-bit lanes, whose lower halves are what the multiplications read.
  HWY_INLINE void block(V64 even0, V64 odd0, uint32_t* bits) const {
    const hn::Repartition<uint64_t, DF> d64;
    const hn::RebindToUnsigned<DF> d32;
    const auto m0 = hn::Set(d32, 0xD2511F53u), m1 = hn::Set(d32, 0xCD9E8D57u);
    V64 even1 = hn::ShiftRight<32>(even0), odd1 = hn::ShiftRight<32>(odd0);
    V64 even2 = hn::Set(d64, uint64_t{op_}), odd2 = even2;
    V64 even3 = hn::Set(d64, uint64_t{step_}), odd3 = even3;
    for (int round = 0; round < 10; ++round) {
      const V64 k0 = hn::Set(d64, uint64_t{keys_[round][0]});
      const V64 k1 = hn::Set(d64, uint64_t{keys_[round][1]});
      const V64 ep0 = hn::MulEven(hn::BitCast(d32, even0), m0);
      const V64 op0 = hn::MulEven(hn::BitCast(d32, odd0), m0);
      const V64 ep1 = hn::MulEven(hn::BitCast(d32, even2), m1);
      const V64 op1 = hn::MulEven(hn::BitCast(d32, odd2), m1);
      even0 = hn::Xor3(hn::ShiftRight<32>(ep1), even1, k0);
      odd0 = hn::Xor3(hn::ShiftRight<32>(op1), odd1, k0);
      even2 = hn::Xor3(hn::ShiftRight<32>(ep0), even3, k1);
      odd2 = hn::Xor3(hn::ShiftRight<32>(op0), odd3, k1);
      even1 = ep1;
      odd1 = op1;
      even3 = ep0;
      odd3 = op0;
    }
    hn::Store(join(even0, odd0), d32, bits);
    hn::Store(join(even1, odd1), d32, bits + kLanes);
    hn::Store(join(even2, odd2), d32, bits + 2 * kLanes);
    hn::Store(join(even3, odd3), d32, bits + 3 * kLanes);
  }

  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> join(V64 even, V64 odd) {
    const hn::RebindToUnsigned<DF> d32;
    return hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)), hn::BitCast(d32, even));
  }

  uint32_t op_, step_;
  uint64_t first_block_;
  uint32_t threshold_;
  uint32_t keys_[10][2];
};

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
