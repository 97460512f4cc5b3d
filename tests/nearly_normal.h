// Random numbers for tests that make millions of them.
#pragma once

#include <cstdint>
#include <random>

namespace ds::testing {

// The sum of four uniform numbers: close to a normal one of mean 0 and deviation 1, at most 3.47.
// The standard library's take three times as long, more than many kernels that are tested on them.
inline double nearly_normal(std::mt19937_64& random) {
  const uint64_t bits = random();
  const auto quarter = [bits](int i) { return static_cast<int32_t>(bits >> (16 * i) & 0xFFFF); };
  const int32_t sum = quarter(0) + quarter(1) + quarter(2) + quarter(3) - 2 * 0xFFFF;
  constexpr double kRootOfThree = 1.7320508075688772;  // a uniform one of length 1 varies by 1/12
  return sum * (kRootOfThree / 0x1p16);
}

}  // namespace ds::testing
