// bfloat16 rounding for every case there is, and checksums against published vectors.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/bfloat16.h"
#include "base/checksum.h"
#include "unit/base/text_bytes.h"

namespace ds {
namespace {

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

// Nearest-even by distances in double: independent of the bit trick under test.
uint16_t nearest_even(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto low = static_cast<uint16_t>(bits >> 16);  // towards zero
  if ((bits & 0xFFFF) == 0 || std::isinf(value)) return low;
  const auto high = static_cast<uint16_t>(low + 1);  // away from zero, perhaps infinity
  const double at = std::fabs(double{value});
  const double below = std::fabs(double{float_of(uint32_t{low} << 16)});
  // Infinity stands for the value one step above the largest finite one, 2^128.
  const double above =
      (high & 0x7FFF) == 0x7F80 ? 0x1p128 : std::fabs(double{float_of(uint32_t{high} << 16)});
  if (at - below != above - at) return at - below < above - at ? low : high;
  return low % 2 == 0 ? low : high;
}

TEST(Bfloat16, EveryValueSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const bfloat16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    EXPECT_EQ(std::bit_cast<uint32_t>(wide), bits << 16);
    if (!std::isnan(wide)) {
      ASSERT_EQ(to_bfloat16(wide).bits, bits);
    }
  }
}

// Rounding depends on the upper half and on how the lower half compares with the middle: all of
// these combinations.
TEST(Bfloat16, RoundsToNearestEvenEverywhere) {
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0u, 1u, 0x4000u, 0x7FFFu, 0x8000u, 0x8001u, 0xC000u, 0xFFFFu}) {
      const float value = float_of(high << 16 | low);
      if (std::isnan(value)) continue;
      ASSERT_EQ(to_bfloat16(value).bits, nearest_even(value)) << (high << 16 | low);
    }
  }
}

TEST(Bfloat16, NansStayQuietNans) {
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t payload = 1; payload < 0x800000; payload = payload * 3 + 1) {
      const uint32_t bits = sign | 0x7F800000 | payload;
      const uint16_t narrow = to_bfloat16(float_of(bits)).bits;
      EXPECT_TRUE(std::isnan(to_float(bfloat16{narrow}))) << bits;
      EXPECT_EQ(narrow & 0x40, 0x40) << bits;
      EXPECT_EQ(narrow >> 15, bits >> 31) << bits;
    }
  }
}

TEST(Bfloat16, TheLargestFiniteNumbersOverflow) {
  EXPECT_EQ(to_bfloat16(0x1.FEp127f).bits, 0x7F7F);
  EXPECT_EQ(to_bfloat16(0x1.FEFFFEp127f).bits, 0x7F7F);
  EXPECT_EQ(to_bfloat16(0x1.FFp127f).bits, 0x7F80);
  EXPECT_EQ(from_float<bfloat16>(-1.0f).bits, 0xBF80);
  EXPECT_EQ(from_float<float>(0.1f), 0.1f);
}

TEST(Checksum, Crc32cVectors) {  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
  std::vector<uint8_t> block(32, 0);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(block))), 0x8A9136AAu);
  block.assign(32, 0xFF);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(block))), 0x62A8AB43u);
  std::iota(block.begin(), block.end(), uint8_t{0});
  EXPECT_EQ(crc32c(std::as_bytes(std::span(block))), 0x46DD794Eu);
}

TEST(Checksum, Xxh3Vectors) {
  EXPECT_EQ(xxh3_64({}), 0x2D06800538D394C2u);
  EXPECT_EQ(xxh3_64(bytes_of("abc")), 0x78AF5F94892F3950u);
}

TEST(Checksum, EveryFlippedBitShows) {
  std::vector<uint8_t> data(257);
  std::iota(data.begin(), data.end(), uint8_t{3});
  const auto bytes = std::as_bytes(std::span(data));
  const uint32_t crc = crc32c(bytes);
  const uint64_t hash = xxh3_64(bytes);
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_NE(crc32c(bytes), crc);
    EXPECT_NE(xxh3_64(bytes), hash);
    data[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
  EXPECT_EQ(crc32c(bytes), crc);
}

}  // namespace
}  // namespace ds
