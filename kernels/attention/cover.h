// Which of 64 keys each query sees, as bits. Included only by files whose functions run where
// tile_unit() of tiles.h says so.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/attention/visibility.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace ds::kernels {

inline uint64_t bits_below(int64_t n) {
  return n >= 64 ? ~uint64_t{0} : n <= 0 ? 0 : (uint64_t{1} << n) - 1;
}

// Turns a matrix of 64 x 64 bits: bit j of row i goes to bit i of row j.
inline void turn_bits(uint64_t* rows) {
  uint64_t mask = 0x00000000FFFFFFFFu;
  for (int step = 32; step != 0; step /= 2, mask ^= mask << step) {
    for (int i = 0; i < 64; i = ((i | step) + 1) & ~step) {
      const uint64_t swapped = ((rows[i] >> step) ^ rows[i | step]) & mask;
      rows[i] ^= swapped << step;
      rows[i | step] ^= swapped;
    }
  }
}

enum class Seen { kNothing, kSome, kAll };

// The queries [first, first + count) of one batch against units of keys.
class Cover {
 public:
  // `ranges` are those of fill_segment_ranges, or null.
  Cover(const AttentionProblem& problem, const Band& band, const SegmentRange* ranges, int64_t b,
        int64_t first, int64_t count)
      : p_(problem), band_(band), first_(first), last_(first + count - 1) {
    if (p_.key_mask != nullptr) mask_ = p_.key_mask + b * p_.mask_stride;
    if (p_.segments == nullptr) return;
    ids_ = p_.segments + b * p_.segment_stride;
    ranges_ = ranges + b * divide_up(p_.keys, kUnit);
    wanted_ = SegmentRange::of(ids_ + first, count);
  }

  int64_t first_key() const { return band_.first_key(first_); }
  int64_t end_key() const { return band_.end_key(last_); }

  // What the queries together see of the keys from `key`, a multiple of kUnit, on.
  Seen unit(int64_t key) const {
    if (key >= end_key() || key + kUnit <= first_key()) return Seen::kNothing;
    const uint64_t visible = unmasked(key);
    if (visible == 0) return Seen::kNothing;
    bool all = visible == ~uint64_t{0} && band_.first_key(last_) <= key &&
               band_.end_key(first_) >= key + kUnit;
    if (ids_ != nullptr) {
      const SegmentRange& range = ranges_[key / kUnit];
      if (!wanted_.meets(range)) return Seen::kNothing;
      all = all && wanted_.single() && range.single();
    }
    return all ? Seen::kAll : Seen::kSome;
  }

  // Bit k of bits[i] says whether query first + i sees key + k.
  void bits(int64_t key, uint64_t* bits) const {
    const uint64_t visible = unmasked(key);
    const int64_t keys = std::min(kUnit, p_.keys - key);
    for (int64_t query = first_; query <= last_; ++query, ++bits) {
      *bits = visible & bits_below(band_.end_key(query) - key) &
              ~bits_below(band_.first_key(query) - key);
      if (ids_ != nullptr && *bits != 0) *bits &= same_segment(ids_[query], ids_ + key, keys);
    }
  }

 private:
  uint64_t unmasked(int64_t key) const {
    const int64_t keys = std::min(kUnit, p_.keys - key);
    if (mask_ == nullptr) return bits_below(keys);
    const __m512i bytes = _mm512_maskz_loadu_epi8(bits_below(keys), mask_ + key);
    return _mm512_test_epi8_mask(bytes, bytes);
  }
  static uint64_t same_segment(int32_t id, const int32_t* ids, int64_t keys) {
    const uint64_t present = bits_below(keys);
    uint64_t same = 0;
    for (int k = 0; k < kUnit; k += 16) {
      const auto lanes = static_cast<__mmask16>(present >> k);
      const __m512i row = _mm512_maskz_loadu_epi32(lanes, ids + k);
      same |= uint64_t{_mm512_mask_cmpeq_epi32_mask(lanes, row, _mm512_set1_epi32(id))} << k;
    }
    return same;
  }

  const AttentionProblem& p_;
  const Band& band_;
  int64_t first_, last_;
  const uint8_t* mask_ = nullptr;
  const int32_t* ids_ = nullptr;
  const SegmentRange* ranges_ = nullptr;
  SegmentRange wanted_{};
};

}  // namespace ds::kernels

#pragma GCC pop_options
