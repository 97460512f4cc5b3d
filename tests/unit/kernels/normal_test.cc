// Normal numbers: those of the C library's functions, the same bits for every instruction set and
// however a range is cut.
#include "kernels/random/normal.h"

#include <gtest/gtest.h>

#include "kernels/simd_targets.h"  // before Highway: which targets there are

#include <hwy/targets.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/text.h"
#include "fresh_seed.h"

namespace ds::kernels {
namespace {

constexpr int64_t kCount = 300'007;

std::vector<float> normals(const RandomStream& stream, int64_t begin, int64_t count,
                           double deviation = 1) {
  std::vector<float> out(static_cast<size_t>(count));
  fill_normal({stream, begin, count, deviation, out.data()});
  return out;
}

RandomStream any_stream() {
  const auto word = [] { return static_cast<uint32_t>(ds::fresh_seed()); };
  return {.seed = ds::fresh_seed(), .step = word(), .op = word(), .sample = 0};
}

class NormalNumbersOn : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(NormalNumbersOn, AreThoseOfTheFormula) {
  const RandomStream stream = any_stream();
  SCOPED_TRACE(str_cat("seed ", stream.seed, " step ", stream.step, " op ", stream.op));
  const std::vector<float> got = normals(stream, 3, kCount, 0.02);
  std::vector<double> expected(got.size());
  reference::fill_normal(stream, 3, kCount, 0.02, expected.data());
  int64_t others = 0;
  double sum = 0, squares = 0, fourth = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    // Rounded once from a double that is off by a few of its last bits: another float is rare.
    others += got[i] != static_cast<float>(expected[i]);
    ASSERT_NEAR(got[i], expected[i], 0x1.0p-24 * (1 + 1e-6) * std::fabs(expected[i])) << i;
    const double z = got[i] / 0.02;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
  }
  EXPECT_LE(others, 1);
  // Six standard deviations of mean, variance and fourth moment.
  const auto n = static_cast<double>(kCount);
  EXPECT_NEAR(sum / n, 0, 6 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 6 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 6 * std::sqrt(96 / n));
}

TEST_P(NormalNumbersOn, HaveTheSameBits) {
  const RandomStream stream = any_stream();
  const std::vector<float> here = normals(stream, 0, kCount);
  hwy::SetSupportedTargetsForTest(0);
  EXPECT_EQ(here, normals(stream, 0, kCount)) << "seed " << stream.seed;
}

INSTANTIATE_TEST_SUITE_P(Targets, NormalNumbersOn,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& row) { return hwy::TargetName(row.param); });

TEST(NormalNumbers, ARangeIsAPartOfTheWhole) {
  const RandomStream stream = any_stream();
  const std::vector<float> whole = normals(stream, 0, 5000);
  for (const int64_t begin : {0, 1, 2, 3, 4, 7, 1023, 1024, 1025, 3000}) {
    for (const int64_t count : {0, 1, 2, 3, 5, 15, 16, 17, 1024, 1500}) {
      const std::vector<float> part = normals(stream, begin, count);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(part[static_cast<size_t>(i)], whole[static_cast<size_t>(begin + i)])
            << begin << " + " << i << " of " << count;
      }
    }
  }
}

// The ends of the words' range: no infinity, and nothing beyond what 32 bits allow.
TEST(NormalNumbers, StayWithinTheirRange) {
  const double most = std::sqrt(-2 * std::log(0x1.0p-33));
  for (const float z : normals(any_stream(), 0, 1 << 20)) {
    ASSERT_TRUE(std::isfinite(z));
    ASSERT_LE(std::fabs(z), most);
  }
}

}  // namespace
}  // namespace ds::kernels
