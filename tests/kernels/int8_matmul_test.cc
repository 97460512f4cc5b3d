// int8 products against integer sums, and quantised rows against a scalar reference.
#include "kernels/matmul/int8_matmul.h"

#include <gtest/gtest.h>

#include "kernels/case_util.h"

namespace ds::testing {
namespace {

using kernels::FloatType;
using kernels::Int8Path;

FloatType type_of(DType dtype) {
  if (dtype == DType::kFloat16) return FloatType::kFloat16;
  return dtype == DType::kFloat32 ? FloatType::kFloat32 : FloatType::kBFloat16;
}

std::vector<int8_t> random_codes(Random& random, int64_t count) {
  std::uniform_int_distribution<int> uniform(-128, 127);
  std::vector<int8_t> codes(static_cast<size_t>(count));
  for (int8_t& code : codes) code = static_cast<int8_t>(uniform(random));
  return codes;
}

class Int8Paths : public ::testing::TestWithParam<Int8Path> {};

TEST_P(Int8Paths, ProductsMatchIntegerSums) {
  if (!kernels::int8_path_runs(GetParam())) GTEST_SKIP() << "not on this CPU";
  const uint64_t seed = std::random_device()();
  Random random(seed);
  const int64_t sizes[][3] = {{1, 1, 1},    {3, 5, 0},      {7, 45, 63},
                              {33, 70, 65}, {300, 40, 200}, {20, 90, 5000}};
  for (const auto& [m, n, k] : sizes) {
    for (const DType out : kFloatTypes) {
      for (const bool with_bias : {false, true}) {
        const int64_t stride = k + 3;
        const std::vector<int8_t> a = random_codes(random, m * stride);
        const std::vector<int8_t> b = random_codes(random, n * stride);
        const Tensor a_scales = random_tensor(random, DType::kFloat32, {m}, 1e-3);
        const Tensor b_scales = random_tensor(random, DType::kFloat32, {n}, 1e-2);
        const Tensor bias = random_tensor(random, out, {n});
        const std::vector<double> sa = doubles(a_scales), sb = doubles(b_scales),
                                  shift = doubles(bias);
        std::vector<double> expected, magnitude;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            int64_t sum = 0;
            for (int64_t l = 0; l < k; ++l) {
              sum += int64_t{a[static_cast<size_t>(i * stride + l)]} *
                     b[static_cast<size_t>(j * stride + l)];
            }
            const double scaled =
                static_cast<double>(sum) * sa[static_cast<size_t>(i)] * sb[static_cast<size_t>(j)];
            const double added = with_bias ? shift[static_cast<size_t>(j)] : 0;
            expected.push_back(scaled + added);
            magnitude.push_back(std::abs(scaled) + std::abs(added));
          }
        }
        CaseDigest first;
        for (const int threads : {1, 3}) {
          const Tensor c = guarded_tensor(out, {m, n});
          ThreadPool pool(threads);
          kernels::int8_matmul({.m = m,
                                .n = n,
                                .k = k,
                                .a = a.data(),
                                .a_stride = stride,
                                .a_scales = static_cast<const float*>(a_scales.raw()),
                                .b = b.data(),
                                .b_stride = stride,
                                .b_scales = static_cast<const float*>(b_scales.raw()),
                                .out = type_of(out),
                                .bias = with_bias ? bias.raw() : nullptr,
                                .c = c.raw(),
                                .c_stride = n},
                               pool, GetParam());
          // The sum to fp32, the scales' product, their product and the bias: one rounding each.
          CaseResult result;
          start_digest();
          compare(result, str_cat(m, "x", n, "x", k), c, expected,
                  {4.5 * 0x1p-24 + storage_roundoff(out), 1e-30}, magnitude);
          EXPECT_LE(result.worst, 1.0) << result.where << ", seed " << seed;
          if (threads == 1) first = digest();
          EXPECT_EQ(digest().bits, first.bits) << "seed " << seed;
        }
      }
    }
  }
}

std::string path_name(const ::testing::TestParamInfo<Int8Path>& info) {
  const char* const names[] = {"Auto", "Amx", "Avx512Vnni", "Avx2", "Portable"};
  return names[static_cast<int>(info.param)];
}
#ifdef DS_AMX_STAND_IN  // kernels_matmul tries all others
INSTANTIATE_TEST_SUITE_P(All, Int8Paths, ::testing::Values(Int8Path::kAmx), path_name);
#else
INSTANTIATE_TEST_SUITE_P(All, Int8Paths,
                         ::testing::Values(Int8Path::kAuto, Int8Path::kAmx, Int8Path::kAvx512Vnni,
                                           Int8Path::kAvx2, Int8Path::kPortable),
                         path_name);
#endif

TEST(Int8Matmul, RefusesSumsThatCouldOverflow) {
  ThreadPool pool(1);
  EXPECT_THROW(kernels::int8_matmul({.m = 1, .n = 1, .k = kernels::kInt8LongestDepth + 1}, pool),
               Error);
}

TEST(QuantizeRows, MatchesTheDefinition) {
  const uint64_t seed = std::random_device()();
  Random random(seed);
  constexpr int64_t kRows = 37, kColumns = 53;
  ThreadPool pool(2);
  for (const DType type : kFloatTypes) {
    const Tensor x = random_tensor(random, type, {kRows, kColumns}, 3);
    std::vector<double> value = doubles(x);
    for (int64_t j = 0; j < kColumns; ++j) value[static_cast<size_t>(2 * kColumns + j)] = 0;
    value[5 * kColumns + 7] = std::numeric_limits<double>::infinity();
    value[6 * kColumns + 52] = std::numeric_limits<double>::quiet_NaN();
    set_doubles(x, value);
    std::vector<int8_t> q(kRows * (kColumns + 1), 99);
    std::vector<float> scales(kRows);
    kernels::quantize_rows({.type = type_of(type),
                            .x = x.raw(),
                            .x_stride = kColumns,
                            .rows = kRows,
                            .columns = kColumns,
                            .q = q.data(),
                            .q_stride = kColumns + 1,
                            .scales = scales.data()},
                           pool);
    for (int64_t i = 0; i < kRows; ++i) {
      const float scale = scales[static_cast<size_t>(i)];
      EXPECT_EQ(q[static_cast<size_t>(i * (kColumns + 1) + kColumns)], 99) << "beyond row " << i;
      double most = 0;
      for (int64_t j = 0; j < kColumns; ++j) {
        most = std::max(most, std::abs(value[static_cast<size_t>(i * kColumns + j)]));
      }
      if (i == 5 || i == 6) {
        EXPECT_TRUE(std::isnan(scale)) << "row " << i;
      } else {
        EXPECT_NEAR(scale, most / 127, most * 1e-7) << "row " << i << ", seed " << seed;
      }
      for (int64_t j = 0; j < kColumns; ++j) {
        const int code = q[static_cast<size_t>(i * (kColumns + 1) + j)];
        if (i == 2 || i == 5 || i == 6) {
          EXPECT_EQ(code, 0) << "row " << i;
          continue;
        }
        // Half a step, and what fp32 loses of a number of at most 127.
        const double exact = value[static_cast<size_t>(i * kColumns + j)] / most * 127;
        EXPECT_LE(std::abs(code - exact), 0.5 + 127 * 4 * 0x1p-24)
            << i << ", " << j << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace ds::testing
