#include "base/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace ds {
namespace {

constexpr int kLimbBits = 32;
constexpr int kLowest = -320;  // exponent of the lowest bit
constexpr uint64_t kLimbMask = (uint64_t{1} << kLimbBits) - 1;
// Each value adds less than 2^32 to a limb; the sign bit stays clear, also after words of several
// sums were added up by a reduction over some thousand ranks.
constexpr int64_t kMostAdds = int64_t{1} << 16;

}  // namespace

void ExactSum::add(double value) {
  constexpr int kMantissa = 52, kBias = 1023;
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> kMantissa & 0x7FF);
  if (exponent == 0x7FF) {
    ++words_[kLimbs];
    return;
  }
  if (exponent == 0) return;  // zero: denormal doubles lie below the range
  const uint64_t mantissa = (bits & ((uint64_t{1} << kMantissa) - 1)) | uint64_t{1} << kMantissa;
  // The place of the mantissa's lowest bit; below the range there are only zeros.
  const int place = exponent - kBias - kMantissa - kLowest;
  const int shift = place < 0 ? 0 : place % kLimbBits;
  const auto limb = static_cast<size_t>(place < 0 ? 0 : place / kLimbBits);
  if (limb + 2 >= static_cast<size_t>(kLimbs)) {
    ++words_[kLimbs];
    return;
  }
  const uint64_t exact = place < 0 ? mantissa >> -place : mantissa;
  const uint64_t low = exact << shift;
  const uint64_t high = shift == 0 ? 0 : exact >> (2 * kLimbBits - shift);
  const auto put = [&](size_t i, uint64_t part) {
    words_[i] += value < 0 ? -static_cast<int64_t>(part) : static_cast<int64_t>(part);
  };
  put(limb, low & kLimbMask);
  put(limb + 1, low >> kLimbBits);
  put(limb + 2, high);
  if (++adds_ == kMostAdds) carry();
}

void ExactSum::carry() {
  for (int i = 0; i + 1 < kLimbs; ++i) {
    words_[static_cast<size_t>(i) + 1] += words_[static_cast<size_t>(i)] >> kLimbBits;
    words_[static_cast<size_t>(i)] &= static_cast<int64_t>(kLimbMask);
  }
  adds_ = 0;
}

void ExactSum::add(const ExactSum& other) {
  ExactSum carried = other;
  carried.carry();
  carry();
  for (size_t i = 0; i < words_.size(); ++i) words_[i] += carried.words_[i];
  carry();
}

double ExactSum::value() const {
  if (words_[kLimbs] != 0) return std::numeric_limits<double>::infinity();
  ExactSum carried = *this;
  carried.carry();
  // The highest three limbs hold at least 65 bits; what lies below cannot reach the result but by
  // a rounding, which comes out the same each time.
  double sum = 0;
  int used = 0;
  for (int i = kLimbs - 1; i >= 0 && used < 3; --i) {
    const int64_t limb = carried.words_[static_cast<size_t>(i)];
    if (limb == 0 && used == 0) continue;
    sum += std::ldexp(static_cast<double>(limb), kLowest + i * kLimbBits);
    ++used;
  }
  return sum;
}

}  // namespace ds
