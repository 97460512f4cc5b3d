#include "data/numpy_random.h"

#include <bit>
#include <numeric>

#include "base/error.h"

namespace ds {

double NumpyRandom::random() {
  const uint32_t a = next() >> 5, b = next() >> 6;
  return (a * 67108864.0 + b) / 9007199254740992.0;
}

uint64_t NumpyRandom::interval(uint64_t most) {
  if (most == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(most);
  for (;;) {
    uint64_t value = next();
    if (most > UINT32_MAX) value = (value << 32) | next();
    value &= mask;
    if (value <= most) return value;
  }
}

int64_t NumpyRandom::randint(int64_t low, int64_t high) {
  DS_CHECK(low < high, Code::kInvalidArgument, "randint needs low < high, got ", low, " and ",
           high);
  const uint64_t most = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) - 1;
  return static_cast<int64_t>(static_cast<uint64_t>(low) + interval(most));
}

std::vector<int64_t> NumpyRandom::permutation(int64_t n) {
  DS_CHECK(n >= 0, Code::kInvalidArgument, "a permutation of ", n, " elements");
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), int64_t{0});
  shuffle(std::span(values));
  return values;
}

std::vector<int64_t> torch_randperm(int64_t n, uint32_t seed) {
  DS_CHECK(n >= 0, Code::kInvalidArgument, "a permutation of ", n, " elements");
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), int64_t{0});
  std::mt19937 engine(seed);
  for (int64_t i = 0; i + 1 < n; ++i) {
    const auto step = static_cast<int64_t>(engine() % static_cast<uint64_t>(n - i));
    std::swap(values[static_cast<size_t>(i)], values[static_cast<size_t>(i + step)]);
  }
  return values;
}

}  // namespace ds
