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

  // Numbers made by one call of fill.
  static int64_t numbers() { return 8 * static_cast<int64_t>(hn::Lanes(D64())); }
  // What random_bits may write beyond its count.
  static constexpr int64_t kPadding = 8 * static_cast<int64_t>(hn::MaxLanes(D64())) + 4;

  // Elements 4 * first_block ... of the stream, numbers() of them.
  HWY_INLINE void fill(uint64_t first_block, uint32_t* out) const {
#if HWY_TARGET == HWY_EMU128  // emulated vectors are slower than the scalar code
    for (int64_t i = 0; i < numbers(); i += 4) {
      const Philox4 block = stream_.block(first_block + static_cast<uint64_t>(i / 4));
      for (size_t k = 0; k < 4; ++k) out[i + static_cast<int64_t>(k)] = block[k];
    }
#else
    const D64 d64;
    const hn::Repartition<uint32_t, D64> d32;
    const auto multiply = [d32](auto v, uint32_t factor) DS_SIMD_BODY {
      return hn::BitCast(d32, hn::MulEven(v, hn::Set(d32, factor)));
    };
    const auto join = [d64, d32](auto high, auto low) DS_SIMD_BODY {
      return hn::BitCast(d64, hn::OddEven(hn::Shuffle2301(high), low));
    };
    // Words sit in the even 32-bit lanes; the odd ones hold whatever the last step left there. Two
    // vectors of blocks at a time hide the latency of the multiplications.
    const auto lane = hn::Iota(d64, 0);
    const auto index_a = hn::Add(lane, hn::Set(d64, first_block));
    const auto index_b = hn::Add(index_a, hn::Set(d64, uint64_t{hn::Lanes(d64)}));
    auto a0 = hn::BitCast(d32, index_a), b0 = hn::BitCast(d32, index_b);
    auto a1 = hn::BitCast(d32, hn::ShiftRight<32>(index_a));
    auto b1 = hn::BitCast(d32, hn::ShiftRight<32>(index_b));
    auto a2 = hn::Set(d32, stream_.op), b2 = a2;
    auto a3 = hn::Set(d32, stream_.step), b3 = a3;
    for (int round = 0; round < 10; ++round) {
      const auto key0 = hn::Set(d32, keys_[round][0]), key1 = hn::Set(d32, keys_[round][1]);
      const auto p0 = multiply(a0, 0xD2511F53u), p1 = multiply(a2, 0xCD9E8D57u);
      const auto q0 = multiply(b0, 0xD2511F53u), q1 = multiply(b2, 0xCD9E8D57u);
      a0 = hn::Xor3(hn::Shuffle2301(p1), a1, key0);
      b0 = hn::Xor3(hn::Shuffle2301(q1), b1, key0);
      a2 = hn::Xor3(hn::Shuffle2301(p0), a3, key1);
      b2 = hn::Xor3(hn::Shuffle2301(q0), b3, key1);
      a1 = p1;
      b1 = q1;
      a3 = p0;
      b3 = q0;
    }
    auto* const words = reinterpret_cast<uint64_t*>(out);
    hn::StoreInterleaved2(join(a1, a0), join(a3, a2), d64, words);
    hn::StoreInterleaved2(join(b1, b0), join(b3, b2), d64, words + 2 * hn::Lanes(d64));
#endif
  }

  // The bits of elements [first, first + n); `buffer` holds n + kPadding numbers, and the result
  // points into it.
  HWY_INLINE const uint32_t* random_bits(uint64_t first, int64_t n, uint32_t* buffer) const {
    const int64_t skip = static_cast<int64_t>(first % 4);
    const int64_t step = numbers();
    uint64_t block = first / 4;
    for (int64_t i = 0; i < n + skip; i += step) {
      fill(block, buffer + i);
      block += static_cast<uint64_t>(step / 4);
    }
    return buffer + skip;
  }

 private:
  RandomStream stream_;
  uint32_t keys_[10][2];
};

}  // namespace ds::kernels::HWY_NAMESPACE::simd
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
