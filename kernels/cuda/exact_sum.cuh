// Exact sums (base/exact_sum.h) in device code. Words are added up as integers, in any order.
#pragma once

#include "base/exact_sum.h"
#include "kernels/cuda/device.cuh"

namespace ds::kernels::cuda {

inline constexpr int kExactLimbs = ExactSum::kWords - 1;

// What a thread has of a sum, for the four limbs that its last values fell into; the rest is in the
// block's words. Values are alike in size, so that words are seldom touched.
struct ExactWindow {
  int base = -1;
  int64_t at[4] = {};

  __device__ __forceinline__ void flush(unsigned long long* words) {
    if (base < 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (at[i] != 0) atomicAdd(words + base + i, static_cast<unsigned long long>(at[i]));
      at[i] = 0;
    }
  }
  // As ExactSum::add has it.
  __device__ __forceinline__ void add(double value, unsigned long long* words) {
    constexpr int kMantissa = 52, kBias = 1023, kLimbBits = 32, kLowest = -320;
    constexpr uint64_t kLimbMask = 0xFFFFFFFFu;
    const auto bits = static_cast<uint64_t>(__double_as_longlong(value));
    const int exponent = static_cast<int>(bits >> kMantissa & 0x7FF);
    if (exponent == 0) return;
    const uint64_t mantissa = (bits & ((uint64_t{1} << kMantissa) - 1)) | uint64_t{1} << kMantissa;
    const int place = exponent - kBias - kMantissa - kLowest;
    const int shift = place < 0 ? 0 : place % kLimbBits, limb = place < 0 ? 0 : place / kLimbBits;
    if (exponent == 0x7FF || limb + 2 >= kExactLimbs) {
      atomicAdd(words + kExactLimbs, 1ull);
      return;
    }
    const uint64_t exact = place < 0 ? mantissa >> -place : mantissa;
    const uint64_t low = exact << shift;
    const auto high = static_cast<int64_t>(shift == 0 ? 0 : exact >> (2 * kLimbBits - shift));
    const auto first = static_cast<int64_t>(low & kLimbMask);
    const auto second = static_cast<int64_t>(low >> kLimbBits);
    if (base < 0 || limb < base || limb > base + 1) {
      flush(words);
      base = limb;
    }
    const bool moved = limb != base;
    at[0] += moved ? 0 : first;
    at[1] += moved ? first : second;
    at[2] += moved ? second : high;
    at[3] += moved ? high : 0;
  }
};

// Does the carries, which makes the words of equal sums equal, and writes them.
template <class Word>
__device__ __forceinline__ void write_carried(const Word* words, int64_t* out) {
  int64_t carry = 0;
  for (int i = 0; i < kExactLimbs; ++i) {
    const int64_t word = static_cast<int64_t>(words[i]) + carry;
    const bool last = i + 1 == kExactLimbs;
    out[i] = last ? word : word & 0xFFFFFFFF;
    carry = word >> 32;
  }
  out[kExactLimbs] = static_cast<int64_t>(words[kExactLimbs]);
}

// ExactSum::value() of words with carries done.
__device__ __forceinline__ double exact_value(const int64_t* words) {
  constexpr int kLimbBits = 32, kLowest = -320;
  if (words[kExactLimbs] != 0) return __longlong_as_double(0x7FF0000000000000ll);
  double sum = 0;
  int used = 0;
  for (int i = kExactLimbs - 1; i >= 0 && used < 3; --i) {
    if (words[i] == 0 && used == 0) continue;
    sum += ldexp(static_cast<double>(words[i]), kLowest + i * kLimbBits);
    ++used;
  }
  return sum;
}

}  // namespace ds::kernels::cuda
