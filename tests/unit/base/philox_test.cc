// Philox4x32-10 against the known answers of the Random123 distribution, and the streams made of
// it.
#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace ds {
namespace {

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamsAreLanesOfCountedBlocks) {
  const RandomStream stream{0x299f31d0a4093822, 0x03707344, 0x13198a2e};
  // Counter words: block index (low, high), op, step; key words: seed (low, high).
  const Philox4 known{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  const uint64_t block = 0x85a308d3243f6a88;
  EXPECT_EQ(stream.block(block), known);
  const RandomStream other{7, 1, 2};
  for (uint64_t element = 0; element < 40; ++element) {
    EXPECT_EQ(other.bits(element), other.block(element / 4)[element % 4]);
  }
}

TEST(Philox, EverythingThatNamesAStreamMatters) {
  std::set<uint32_t> seen;
  for (const RandomStream& stream :
       {RandomStream{1, 2, 3}, RandomStream{2, 2, 3}, RandomStream{uint64_t{1} << 32 | 1, 2, 3},
        RandomStream{1, 3, 3}, RandomStream{1, 2, 4}, RandomStream{1, 3, 2},
        RandomStream{1, 2, 3, 1}}) {
    seen.insert(stream.bits(5));
  }
  EXPECT_EQ(seen.size(), 7u);
}

TEST(Philox, OperatorsAreCountedWithinTheirLayer) {
  std::set<uint32_t> numbers;
  const uint32_t last = RandomStream::kOperators - 1;
  for (const uint32_t layer : {0u, 1u, 2u, RandomStream::kLayers - 1}) {
    for (const uint32_t index : {0u, 1u, last}) {
      numbers.insert(RandomStream::operator_in_layer(layer, index));
    }
  }
  EXPECT_EQ(numbers.size(), 12u);
}

TEST(Philox, SamplesOfABatchContinueOneAnother) {
  const RandomStream whole{9, 2, 3, 5};
  for (uint32_t sample = 0; sample < 4; ++sample) {
    const RandomStream alone{9, 2, 3, 5 + sample};
    for (uint64_t element = 0; element < 20; ++element) {
      EXPECT_EQ(whole.bits(RandomStream::first_of_sample(sample) + element), alone.bits(element));
    }
  }
}

TEST(Philox, UniformNumbersAreInRange) {
  EXPECT_EQ(uniform_from_bits(0), 0.0f);
  EXPECT_EQ(uniform_from_bits(255), 0.0f);
  EXPECT_EQ(uniform_from_bits(256), 0x1p-24f);
  EXPECT_EQ(uniform_from_bits(0xffffffff), 1.0f - 0x1p-24f);
  // Mean and variance of 2^18 numbers, within six deviations.
  const RandomStream stream{42, 0, 0};
  constexpr int kNumbers = 1 << 18;
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < kNumbers; ++i) {
    const double u = uniform_from_bits(stream.bits(i));
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kNumbers, 0.5, 6 * std::sqrt(1.0 / 12 / kNumbers));
  EXPECT_NEAR(squares / kNumbers, 1.0 / 3, 6 * std::sqrt(4.0 / 45 / kNumbers));
}

TEST(Philox, DropoutThresholds) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
  EXPECT_EQ(dropout_threshold(0.25), 0x40000000u);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 0xffffffffu);
}

}  // namespace
}  // namespace ds
