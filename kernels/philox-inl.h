// Philox4x32-10 by the vector: the numbers of base/philox.h bit for bit. Included once per SIMD
// target.
#if defined(DS_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_PHILOX_INL_H_
#undef DS_KERNELS_PHILOX_INL_H_
#else
#define DS_KERNELS_PHILOX_INL_H_
#endif

#include "base/philox.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE::simd {

// A block per 64-bit lane: the 32x32 multiplication reads only the low half of a lane, so products
// feed the next round without being taken apart.
class Philox {
  using D64 = hn::ScalableTag<uint64_t>;

 public:
  explicit Philox(const RandomStream& stream) : stream_(stream) {
    uint32_t k0 = static_cast<uint32_t>(stream.seed);
    uint32_t k1 = static_cast<uint32_t>(stream.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      keys_[round][0] = k0;
      keys_[round][1] = k1;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  // Pairs of vectors that are worked out side by side, to hide the latency of the multiplications.
  // More would gain nothing, and attention asks for two at a time.
  static constexpr int kPairs = 2;
  // What random_bits and paired_bits may write beyond their count.
  static constexpr int64_t kPadding = kPairs * 4 * static_cast<int64_t>(hn::MaxLanes(D64())) + 4;

  // The bits of elements [first, first + n); `buffer` holds n + kPadding numbers, and the result
  // points into it.
  HWY_INLINE const uint32_t* random_bits(uint64_t first, int64_t n, uint32_t* buffer) const {
    const int64_t skip = static_cast<int64_t>(first % 4);
    fill(first / 4, 0, n + skip, buffer);
    return buffer + skip;
  }

  // The same for a `first` that is a multiple of 4, but of the first `paired` elements the even and
  // the odd ones of every two vectors apart, as kernels/map-inl.h has bf16.
  HWY_INLINE void paired_bits(uint64_t first, int64_t paired, int64_t n, uint32_t* buffer) const {
    fill(first / 4, paired, n, buffer);
  }

 private:
  static int64_t pair() { return 4 * static_cast<int64_t>(hn::Lanes(D64())); }

  // Elements from 4 * block on, the first `paired` of n apart.
  HWY_INLINE void fill(uint64_t block, int64_t paired, int64_t n, uint32_t* out) const {
#if HWY_TARGET == HWY_EMU128  // emulated vectors are slower than the scalar code
    for (int64_t i = 0; i < n; i += 4) {
      const Philox4 words = stream_.block(block + static_cast<uint64_t>(i / 4));
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t at = i + k, in_pair = at % pair();
        const int64_t apart = in_pair % 2 * (pair() / 2) + in_pair / 2;
        out[at < paired ? at - in_pair + apart : at] = words[static_cast<size_t>(k)];
      }
    }
#else
    for (int64_t i = 0; i < n; i += kPairs * pair()) {
      Blocks blocks[kPairs];
      encrypt(block + static_cast<uint64_t>(i / 4), blocks);
      for (int k = 0; k < kPairs; ++k) {
        const int64_t at = i + k * pair();
        store(last_round(blocks[k]), at < paired, out + at);
      }
    }
#endif
  }

#if HWY_TARGET != HWY_EMU128
  using D32 = hn::Repartition<uint32_t, D64>;
  using V32 = hn::Vec<D32>;
  static constexpr uint32_t kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u;

  // A block per 64-bit lane: its words sit in the even 32-bit lanes of four vectors; the odd ones
  // hold whatever the last step left there.
  struct Blocks {
    V32 c0, c1, c2, c3;
  };
  // Their elements, which are those of two vectors of 32-bit lanes.
  struct Words {
    V32 even, odd;
  };

  static HWY_INLINE void store(const Words& words, bool apart, uint32_t* out) {
    const D32 d32;
    if (apart) {
      hn::StoreU(words.even, d32, out);
      hn::StoreU(words.odd, d32, out + pair() / 2);
    } else {
      hn::StoreInterleaved2(words.even, words.odd, d32, out);
    }
  }

  static HWY_INLINE V32 multiply(V32 v, uint32_t factor) {
    const D32 d32;
    return hn::BitCast(d32, hn::MulEven(v, hn::Set(d32, factor)));
  }

  HWY_INLINE void round(int index, Blocks& b) const {
    const D32 d32;
    const V32 key0 = hn::Set(d32, keys_[index][0]), key1 = hn::Set(d32, keys_[index][1]);
    const V32 p0 = multiply(b.c0, kFactor0), p1 = multiply(b.c2, kFactor1);
    b.c0 = hn::Xor3(hn::Shuffle2301(p1), b.c1, key0);
    b.c1 = p1;
    b.c2 = hn::Xor3(hn::Shuffle2301(p0), b.c3, key1);
    b.c3 = p0;
  }

  // In the first round two words are the same in all blocks.
  HWY_INLINE Blocks first_round(uint64_t block) const {
    const D64 d64;
    const D32 d32;
    const uint64_t same = uint64_t{kFactor1} * stream_.op;
    const auto index =
        hn::Add(hn::Iota(d64, 0), hn::Set(d64, block + (uint64_t{stream_.sample} << 32)));
    const V32 p0 = multiply(hn::BitCast(d32, index), kFactor0);
    const V32 key0 = hn::Set(d32, static_cast<uint32_t>(same >> 32) ^ keys_[0][0]);
    const V32 key1 = hn::Set(d32, stream_.step ^ keys_[0][1]);
    return {hn::Xor(hn::BitCast(d32, hn::ShiftRight<32>(index)), key0),
            hn::Set(d32, static_cast<uint32_t>(same)), hn::Xor(hn::Shuffle2301(p0), key1), p0};
  }

  // All rounds but the last, written out: in loops, moves between registers would cost a third
  // more.
  HWY_INLINE void encrypt(uint64_t block, Blocks (&out)[kPairs]) const {
    const uint64_t step = hn::Lanes(D64());
    Blocks a = first_round(block), b = first_round(block + step);
    const auto both = [&](int index) DS_SIMD_BODY { round(index, a), round(index, b); };
    both(1), both(2), both(3), both(4), both(5), both(6), both(7), both(8);
    out[0] = a;
    out[1] = b;
  }

  // Words 0 and 2, and words 1 and 3, side by side: the high halves of one product stand where
  // they belong already.
  HWY_INLINE Words last_round(const Blocks& b) const {
    const D32 d32;
    const V32 keys = hn::OddEven(hn::Set(d32, keys_[9][1]), hn::Set(d32, keys_[9][0]));
    const V32 p0 = multiply(b.c0, kFactor0), p1 = multiply(b.c2, kFactor1);
    const V32 high = hn::OddEven(p0, hn::Shuffle2301(p1));
    const V32 before = hn::OddEven(hn::Shuffle2301(b.c3), b.c1);
    return {hn::Xor3(high, before, keys), hn::OddEven(hn::Shuffle2301(p0), p1)};
  }
#endif

  RandomStream stream_;
  uint32_t keys_[10][2];
};

}  // namespace ds::kernels::HWY_NAMESPACE::simd
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
