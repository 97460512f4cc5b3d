// The shared SIMD helpers against scalar code, on every instruction set that this machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "unit/kernels/simd_test.cc"
#include <hwy/foreach_target.h>

#include "fresh_seed.h"
#include "kernels/philox-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {

int64_t lanes() { return simd::lanes(); }

void exp_all(const float* x, int64_t n, float* y) {
  const simd::DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(simd::exp(d, simd::load_n(d, x + i, count)), d, y + i, count);
  });
}
void tanh_all(const float* x, int64_t n, float* y) {
  const simd::DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(simd::tanh(d, simd::load_n(d, x + i, count)), d, y + i, count);
  });
}
void reciprocal_all(const float* x, int64_t n, float* y) {
  const simd::DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(simd::reciprocal(d, simd::load_n(d, x + i, count)), d, y + i, count);
  });
}
void sqrt_all(const float* x, int64_t n, float* y) {
  const simd::DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(simd::sqrt(d, simd::load_n(d, x + i, count)), d, y + i, count);
  });
}
void narrow(const float* x, int64_t n, bfloat16* y) {
  const simd::DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(simd::load_n(d, x + i, count), d, y + i, count);
  });
}
void widen(const bfloat16* x, int64_t n, float* y) {
  const simd::DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(simd::load_n(d, x + i, count), d, y + i, count);
  });
}
void sums(const float* x, double* out) {
  const simd::DF d;
  const simd::DD dd;
  const auto v = simd::load(d, x);
  out[0] = simd::sum_of_lanes(d, v);
  out[1] = simd::sum_of_lanes(dd, simd::lower_doubles(v)) +
           simd::sum_of_lanes(dd, simd::upper_doubles(v));
  out[2] = simd::max_of_lanes(d, v);
}
void random(const RandomStream& stream, uint64_t first, int64_t n, uint32_t* out) {
  constexpr int64_t kMost = 2000;
  uint32_t buffer[kMost + simd::Philox::kPadding];
  const uint32_t* bits = simd::Philox(stream).random_bits(first, n, buffer);
  for (int64_t i = 0; i < n; ++i) out[i] = bits[i];
}

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
HWY_EXPORT(lanes);
HWY_EXPORT(exp_all);
HWY_EXPORT(tanh_all);
HWY_EXPORT(reciprocal_all);
HWY_EXPORT(sqrt_all);
HWY_EXPORT(narrow);
HWY_EXPORT(widen);
HWY_EXPORT(sums);
HWY_EXPORT(random);

namespace {

// Runs each test once per instruction set.
class Simd : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

INSTANTIATE_TEST_SUITE_P(Targets, Simd, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) {
                           return std::string(hwy::TargetName(target.param));
                         });

double ulp(double exact) {
  const float f = std::max(std::abs(static_cast<float>(exact)), std::numeric_limits<float>::min());
  return std::nextafter(f, std::numeric_limits<float>::infinity()) - double{f};
}

// Largest error in ulp over every `stride`-th float of [low, high].
template <class Kernel, class Exact>
double worst_ulp(float low, float high, const Kernel& kernel, const Exact& exact) {
  constexpr int kPoints = 200000;
  std::mt19937_64 random(ds::run_seed());
  std::vector<float> x(kPoints), y(kPoints);
  for (int i = 0; i < kPoints; ++i) {
    x[static_cast<size_t>(i)] =
        low + (high - low) *
                  static_cast<float>((i + std::generate_canonical<double, 53>(random)) / kPoints);
  }
  kernel(x.data(), kPoints, y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double right = exact(double{x[i]});
    const double error = std::abs(y[i] - right) / ulp(right);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST_P(Simd, ExpIsWithinTwoUlp) {
  const auto kernel = [](const float* x, int64_t n, float* y) {
    HWY_DYNAMIC_DISPATCH(exp_all)(x, n, y);
  };
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_ulp(-87.3f, 88.37f, kernel, exact), 2.0);
  EXPECT_LE(worst_ulp(-1.0f, 1.0f, kernel, exact), 2.0);
  EXPECT_LE(worst_ulp(-1e-3f, 1e-3f, kernel, exact), 2.0);
  const float x[] = {0.0f, -0.0f, -88.1f, -1e30f, -kInf, 88.4f, 1e30f, kInf, kNan};
  float y[9];
  kernel(x, 9, y);
  const float want[] = {1, 1, 0, 0, 0, kInf, kInf, kInf};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(y[i], want[i]) << x[i];
  EXPECT_TRUE(std::isnan(y[8]));
}

TEST_P(Simd, TanhIsWithinThreeUlp) {
  const auto kernel = [](const float* x, int64_t n, float* y) {
    HWY_DYNAMIC_DISPATCH(tanh_all)(x, n, y);
  };
  const auto exact = [](double x) { return std::tanh(x); };
  for (const float range : {1e-20f, 1e-3f, 0.7f, 2.0f, 12.0f, 100.0f}) {
    EXPECT_LE(worst_ulp(-range, range, kernel, exact), 3.0) << range;
  }
  const float x[] = {0.0f, -0.0f, 1e30f, -1e30f, kInf, -kInf, kNan};
  float y[7];
  kernel(x, 7, y);
  const float want[] = {0.0f, -0.0f, 1, -1, 1, -1};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(want[i])) << x[i];
  }
  EXPECT_TRUE(std::isnan(y[6]));
}

TEST_P(Simd, ReciprocalIsWithinTwoUlp) {
  const auto kernel = [](const float* x, int64_t n, float* y) {
    HWY_DYNAMIC_DISPATCH(reciprocal_all)(x, n, y);
  };
  const auto exact = [](double x) { return 1 / x; };
  for (const float low : {1e-30f, 1e-3f, 1.0f, 1e20f}) {
    EXPECT_LE(worst_ulp(low, 2 * low, kernel, exact), 2.0) << low;
    EXPECT_LE(worst_ulp(-2 * low, -low, kernel, exact), 2.0) << low;
  }
  float y = 0;
  kernel(&kNan, 1, &y);
  EXPECT_TRUE(std::isnan(y));
}

TEST_P(Simd, SqrtIsWithinOneUlp) {
  const auto kernel = [](const float* x, int64_t n, float* y) {
    HWY_DYNAMIC_DISPATCH(sqrt_all)(x, n, y);
  };
  const auto exact = [](double x) { return std::sqrt(x); };
  for (const float low : {1e-37f, 1e-12f, 1.0f, 1e30f}) {
    EXPECT_LE(worst_ulp(low, 4 * low, kernel, exact), 1.0) << low;
  }
  const float x[] = {0.0f, kInf, -1.0f, kNan};
  float y[4];
  kernel(x, 4, y);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], kInf);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_TRUE(std::isnan(y[3]));
}

TEST_P(Simd, NarrowsLikeTheScalarConversion) {
  // Around every bf16 value: below, at and above the half-way point, so every rounding case and
  // every NaN payload class occurs.
  std::vector<float> x;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::vector<bfloat16> y(x.size());
  HWY_DYNAMIC_DISPATCH(narrow)(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i].bits, to_bfloat16(x[i]).bits) << std::bit_cast<uint32_t>(x[i]);
  }
}

TEST_P(Simd, WidensEveryBfloat16) {
  std::vector<bfloat16> x(65536);
  for (size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<uint16_t>(i);
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(widen)(x.data(), 65536, y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), static_cast<uint32_t>(i) << 16);
  }
}

TEST_P(Simd, TailsTouchNothingBeyond) {
  for (int64_t n = 0; n < 40; ++n) {
    const auto size = static_cast<size_t>(n);
    // Exactly n elements on the heap: the address sanitizer sees a read beyond.
    std::vector<float> x(size);
    for (size_t i = 0; i < size; ++i) x[i] = static_cast<float>(i) + 0.5f;
    std::vector<bfloat16> narrow_out(size + 1, {0xABCD});
    HWY_DYNAMIC_DISPATCH(narrow)(x.data(), n, narrow_out.data());
    EXPECT_EQ(narrow_out[size].bits, 0xABCD) << n;
    narrow_out.resize(size);
    narrow_out.shrink_to_fit();
    std::vector<float> wide(size + 1, 77.0f);
    HWY_DYNAMIC_DISPATCH(widen)(narrow_out.data(), n, wide.data());
    EXPECT_EQ(wide[size], 77.0f) << n;
    for (size_t i = 0; i < size; ++i) EXPECT_EQ(wide[i], x[i]);
  }
}

TEST_P(Simd, SumsEveryLane) {
  const int64_t n = HWY_DYNAMIC_DISPATCH(lanes)();
  // Also shows that the test really runs on the target it is named after.
  if (GetParam() == HWY_AVX3) {
    EXPECT_EQ(n, 16);
  }
  if (GetParam() == HWY_AVX2) {
    EXPECT_EQ(n, 8);
  }
  if (GetParam() == HWY_EMU128) {
    EXPECT_EQ(n, 4);
  }
  std::vector<float> x(static_cast<size_t>(n));
  double total = 0;
  for (size_t i = 0; i < x.size(); ++i) total += x[i] = static_cast<float>(1 << i);
  double out[3];
  HWY_DYNAMIC_DISPATCH(sums)(x.data(), out);
  EXPECT_EQ(out[0], total);
  EXPECT_EQ(out[1], total);
  EXPECT_EQ(out[2], x.back());
}

TEST_P(Simd, PhiloxMakesTheStreamsNumbers) {
  std::mt19937_64 random(ds::run_seed());
  for (int round = 0; round < 60; ++round) {
    const RandomStream stream{random(), static_cast<uint32_t>(random()),
                              static_cast<uint32_t>(random()), static_cast<uint32_t>(random())};
    // Also across the end of a sample's elements.
    const uint64_t first = round % 3 == 0 ? (uint64_t{1} << 34) - random() % 300 : random() >> 20;
    const auto n = static_cast<int64_t>(random() % 600);
    std::vector<uint32_t> bits(static_cast<size_t>(n));
    HWY_DYNAMIC_DISPATCH(random)(stream, first, n, bits.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(bits[static_cast<size_t>(i)], stream.bits(first + static_cast<uint64_t>(i)))
          << "element " << first << " + " << i;
    }
  }
}

}  // namespace
}  // namespace ds::kernels
#endif  // HWY_ONCE
