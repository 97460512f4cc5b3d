// A sum that does not depend on the order: against integers of any size, and across cuts.
#include "base/exact_sum.h"
#include "fresh_seed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace ds {
namespace {

std::vector<double> random_squares(std::mt19937_64& random, int count, int spread) {
  std::vector<double> out;
  std::normal_distribution<float> normal;
  for (int i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(random() % static_cast<uint64_t>(2 * spread)) - spread;
    const auto x = static_cast<double>(std::ldexp(normal(random), exponent));
    out.push_back(x * x);
  }
  return out;
}

TEST(ExactSum, OrderAndCutsDoNotMatter) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  for (const int spread : {1, 20, 120}) {
    SCOPED_TRACE(seed);
    std::vector<double> values = random_squares(random, 200'000, spread);
    ExactSum whole;
    for (const double value : values) whole.add(value);
    std::shuffle(values.begin(), values.end(), random);
    // As ranks add theirs: words as integers.
    ExactSum total;
    for (size_t begin = 0; begin < values.size(); begin += 77'777) {
      ExactSum part;
      for (size_t i = begin; i < std::min(values.size(), begin + 77'777); ++i) part.add(values[i]);
      for (size_t w = 0; w < total.words().size(); ++w) total.words()[w] += part.words()[w];
    }
    EXPECT_EQ(total.value(), whole.value());
    long double plain = 0;
    for (const double value : values) plain += value;
    EXPECT_NEAR(whole.value() / static_cast<double>(plain), 1, 1e-13);
  }
}

// Numbers are cut in two at any place: a multiple above or below, and what that is more or less.
TEST(ExactSum, TakesDifferences) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const int spread : {1, 20, 60}) {
    const std::vector<double> values = random_squares(random, 200'000, spread);
    ExactSum whole, parts;
    for (const double value : values) {
      whole.add(value);
      const double above = std::ldexp(1.0, static_cast<int>(random() % 80) - 40);
      const double cut = std::ceil(value / above) * above;
      const double rest = value - cut;
      if (cut + rest != value || std::abs(rest) > cut) {  // not exact
        parts.add(value);
        continue;
      }
      parts.add(rest);
      parts.add(cut);
    }
    ExactSum one, other;  // carried
    one.add(whole);
    other.add(parts);
    EXPECT_TRUE(std::equal(one.words().begin(), one.words().end(), other.words().begin()));
    EXPECT_EQ(parts.value(), whole.value());
  }
}

TEST(ExactSum, KeepsEveryBit) {
  // 2^60 times a number that vanishes beside the sum in double.
  ExactSum sum;
  sum.add(1.0);
  for (int i = 0; i < 1 << 20; ++i) sum.add(std::ldexp(1.0, -60));
  EXPECT_EQ(sum.value(), 1.0 + std::ldexp(1.0, -40));
  const double least = static_cast<double>(std::numeric_limits<float>::denorm_min());
  ExactSum tiny;
  for (int i = 0; i < 3; ++i) tiny.add(least * least);
  EXPECT_EQ(tiny.value(), 3 * least * least);
  const double most = static_cast<double>(std::numeric_limits<float>::max());
  ExactSum large;
  for (int i = 0; i < 4; ++i) large.add(most * most);
  EXPECT_EQ(large.value(), 4 * most * most);
  EXPECT_EQ(ExactSum().value(), 0);
}

TEST(ExactSum, NotFiniteStays) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    ExactSum sum, other;
    sum.add(bad);
    sum.add(1.0);
    other.add(2.0);
    other.add(sum);
    EXPECT_FALSE(std::isfinite(sum.value()));
    EXPECT_FALSE(std::isfinite(other.value()));
  }
}

}  // namespace
}  // namespace ds
