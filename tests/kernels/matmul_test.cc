// What the operator table cannot say about matrix products: every implementation, strides and
// layouts, epilogues.
#include "kernels/matmul/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fresh_seed.h"
#include "kernels/case_util.h"
#include "ops/linear.h"

namespace ds::testing {
namespace {

using kernels::ActivationKind;
using kernels::Matmul;
using kernels::MatmulPath;
using kernels::MatmulType;

MatmulType type_of(DType dtype) {
  if (dtype == DType::kFloat16) return MatmulType::kFloat16;
  return dtype == DType::kFloat32 ? MatmulType::kFloat32 : MatmulType::kBFloat16;
}

// Dot products are for operands that lie along k.
bool takes(MatmulPath path, bool ta, bool tb) {
  return path != MatmulPath::kFewRows || (!ta && tb);
}

// Every layout, with rows longer than the matrix, on the given path. Returns the bits of C.
CaseResult check_layouts(ThreadPool& pool, uint64_t seed, DType in, DType out, int64_t m, int64_t n,
                         int64_t k, MatmulPath path) {
  Random random(seed);
  CaseResult result;
  for (int layout = 0; layout < 16; ++layout) {
    const bool ta = (layout & 1) != 0, tb = (layout & 2) != 0;
    const bool accumulate = (layout & 4) != 0, with_bias = (layout & 8) != 0;
    if (!takes(path, ta, tb)) continue;
    const Tensor a_wide = random_tensor(random, in, {ta ? k : m, (ta ? m : k) + 3});
    const Tensor b_wide = random_tensor(random, in, {tb ? n : k, (tb ? k : n) + 5});
    const Tensor c_wide = random_tensor(random, out, {m, n + 7});
    const Tensor bias = random_tensor(random, in, {n});
    const Tensor a = a_wide.slice(1, 1, 1 + (ta ? m : k)), b = b_wide.slice(1, 2, 2 + (tb ? k : n));
    const Tensor c = c_wide.slice(1, 4, 4 + n), left = c_wide.slice(1, 0, 4),
                 right = c_wide.slice(1, 4 + n, 7 + n);
    const std::vector<double> left_before = doubles(left), right_before = doubles(right);

    std::vector<double> expected = doubles(c), magnitude(expected.size());
    const std::vector<double> a64 = doubles(a), b64 = doubles(b), bias64 = doubles(bias);
    kernels::matmul_ref({.m = m,
                         .n = n,
                         .k = k,
                         .a = a64.data(),
                         .a_transposed = ta,
                         .b = b64.data(),
                         .b_transposed = tb,
                         .bias = with_bias ? bias64.data() : nullptr,
                         .accumulate = accumulate,
                         .c = expected.data(),
                         .magnitude = magnitude.data()});
    Matmul p;
    p.m = m;
    p.n = n;
    p.k = k;
    p.in = type_of(in);
    p.out = type_of(out);
    p.a = {a.raw(), a_wide.size(1), ta};
    p.b = {b.raw(), b_wide.size(1), tb};
    p.bias = with_bias ? bias.raw() : nullptr;
    p.c = c.raw();
    p.c_stride = c_wide.size(1);
    p.accumulate = accumulate;
    kernels::matmul(p, pool, path);
    // As in cases_linear.cc: the random-walk bound of the sum, and one rounding of the result.
    const double rounding = storage_roundoff(out);
    const double sum = 4 * std::sqrt(static_cast<double>(k) + 4) * unit_roundoff(DType::kFloat32);
    const std::string what = str_cat(ta ? "T" : "N", tb ? "T" : "N", accumulate ? " +C" : "",
                                     with_bias ? " +bias" : "", " ", m, "x", n, "x", k);
    compare(result, what, c, expected, {sum + rounding, 1e-30}, magnitude);
    compare(result, what + " left of C", left, left_before, {});
    compare(result, what + " right of C", right, right_before, {});
  }
  return result;
}

class MatmulPaths : public ::testing::TestWithParam<MatmulPath> {};

TEST_P(MatmulPaths, EveryLayoutMatchesTheReference) {
  const uint64_t seed = ds::fresh_seed();
  const std::pair<DType, DType> types[] = {{DType::kFloat32, DType::kFloat32},
                                           {DType::kBFloat16, DType::kBFloat16},
                                           {DType::kBFloat16, DType::kFloat32},
                                           {DType::kFloat16, DType::kFloat16},
                                           {DType::kFloat16, DType::kFloat32}};
  for (const auto& [in, out] : types) {
    if (!kernels::matmul_path_runs(GetParam(), type_of(in))) continue;
    const int64_t sizes[][3] = {{1, 1, 1},      {7, 5, 9},      {130, 260, 260},
                                {200, 40, 300}, {150, 40, 288}, {3, 4, 0}};
    for (const auto& [m, n, k] : sizes) {
      CaseDigest first;
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        start_digest();
        const CaseResult result = check_layouts(pool, seed, in, out, m, n, k, GetParam());
        EXPECT_LE(result.worst, 1.0) << result.where << ", seed " << seed;
        if (threads == 1) first = digest();
        EXPECT_EQ(digest().bits, first.bits) << threads << " threads, seed " << seed;
      }
    }
  }
}

// Rounds over k, over rows and over columns, in the layouts of the three products of a linear
// layer.
TEST_P(MatmulPaths, LargeProductsMatchSampledDots) {
  const uint64_t seed = ds::fresh_seed();
  struct Case {
    int64_t m, n, k;
    bool ta, tb;
  };
  const Case cases[] = {{40, 1100, 4500, false, true}, {1200, 130, 2300, false, false},
                        {2500, 70, 1030, true, false}, {1100, 90, 4160, false, false},
                        {600, 1000, 640, false, true}, {5, 2100, 64, true, true}};
  for (const DType in : {DType::kFloat32, DType::kBFloat16}) {
    if (!kernels::matmul_path_runs(GetParam(), type_of(in))) continue;
    for (const Case& c : cases) {
      if (!takes(GetParam(), c.ta, c.tb)) continue;
      Random random(seed);
      const Tensor a = random_tensor(random, in, c.ta ? Shape{c.k, c.m} : Shape{c.m, c.k});
      const Tensor b = random_tensor(random, in, c.tb ? Shape{c.n, c.k} : Shape{c.k, c.n});
      const std::vector<double> a64 = doubles(a), b64 = doubles(b);
      CaseDigest first;
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        const Tensor y = guarded_tensor(in, {c.m, c.n});
        Matmul p;
        p.m = c.m;
        p.n = c.n;
        p.k = c.k;
        p.in = p.out = type_of(in);
        p.a = {a.raw(), a.size(1), c.ta};
        p.b = {b.raw(), b.size(1), c.tb};
        p.c = y.raw();
        p.c_stride = c.n;
        kernels::matmul(p, pool, GetParam());
        // Every 97th element against a dot product in double; all of them must be finite.
        const std::vector<double> actual = doubles(y);
        std::vector<double> sampled, expected, magnitude;
        for (int64_t at = 0; at < c.m * c.n; ++at) {
          ASSERT_TRUE(std::isfinite(actual[static_cast<size_t>(at)])) << at;
          if (at % 97 != 0) continue;
          const int64_t i = at / c.n, j = at % c.n;
          double sum = 0, size = 0;
          for (int64_t l = 0; l < c.k; ++l) {
            const double product = a64[static_cast<size_t>(c.ta ? l * c.m + i : i * c.k + l)] *
                                   b64[static_cast<size_t>(c.tb ? j * c.k + l : l * c.n + j)];
            sum += product;
            size += std::abs(product);
          }
          sampled.push_back(actual[static_cast<size_t>(at)]);
          expected.push_back(sum);
          magnitude.push_back(size);
        }
        const double bound =
            4 * std::sqrt(static_cast<double>(c.k)) * unit_roundoff(DType::kFloat32) +
            storage_roundoff(in);
        for (size_t i = 0; i < sampled.size(); ++i) {
          ASSERT_LE(std::abs(sampled[i] - expected[i]), bound * magnitude[i])
              << "sample " << i << ", " << c.m << "x" << c.n << "x" << c.k << ", seed " << seed;
        }
        CaseResult same;
        start_digest();
        compare(same, "y", y, actual, {});
        if (threads == 1) first = digest();
        EXPECT_EQ(digest().bits, first.bits) << threads << " threads, seed " << seed;
      }
    }
  }
}

TEST_P(MatmulPaths, EpiloguesMatchTheReference) {
  const uint64_t seed = ds::fresh_seed();
  constexpr int64_t kM = 37, kN = 45, kK = 70;
  const std::pair<DType, DType> types[] = {{DType::kFloat32, DType::kFloat32},
                                           {DType::kBFloat16, DType::kBFloat16},
                                           {DType::kBFloat16, DType::kFloat32},
                                           {DType::kFloat16, DType::kFloat16}};
  for (const auto& [in, out] : types) {
    if (!kernels::matmul_path_runs(GetParam(), type_of(in))) continue;
    for (const ActivationKind kind :
         {ActivationKind::kRelu, ActivationKind::kSilu, ActivationKind::kGeluTanh,
          ActivationKind::kGeluErf, ActivationKind::kTanh}) {
      for (const bool with_bias : {false, true}) {
        Random random(seed);
        const Tensor a = random_tensor(random, in, {kM, kK}),
                     b = random_tensor(random, in, {kN, kK});
        const Tensor bias = random_tensor(random, in, {kN});
        const Tensor y = guarded_tensor(out, {kM, kN}), pre = guarded_tensor(out, {kM, kN});
        const Tensor alone = guarded_tensor(out, {kM, kN});
        Matmul p;
        p.m = kM;
        p.n = kN;
        p.k = kK;
        p.in = type_of(in);
        p.out = type_of(out);
        p.a = {a.raw(), kK, false};
        p.b = {b.raw(), kK, true};
        p.alpha = 0.25f;
        p.bias = with_bias ? bias.raw() : nullptr;
        p.c = y.raw();
        p.c_stride = p.pre_stride = kN;
        p.activation = kind;
        p.pre = pre.raw();
        ThreadPool pool(2);
        kernels::matmul(p, pool, GetParam());
        p.c = alone.raw();
        p.pre = nullptr;
        kernels::matmul(p, pool, GetParam());

        std::vector<double> a64 = doubles(a);
        for (double& value : a64) value *= 0.25;
        const std::vector<double> b64 = doubles(b), bias64 = doubles(bias);
        std::vector<double> expected(kM * kN), magnitude(expected.size());
        kernels::matmul_ref({.m = kM,
                             .n = kN,
                             .k = kK,
                             .a = a64.data(),
                             .b = b64.data(),
                             .b_transposed = true,
                             .bias = with_bias ? bias64.data() : nullptr,
                             .c = expected.data(),
                             .magnitude = magnitude.data()});
        const std::string what =
            str_cat(type_name(in), " to ", type_name(out), ", kind ", static_cast<int>(kind));
        CaseResult result;
        const double sum = 4 * std::sqrt(kK + 4.0) * unit_roundoff(DType::kFloat32);
        compare(result, what + " pre", pre, expected, {sum + storage_roundoff(out), 1e-30},
                magnitude);
        // The function of the very numbers that were stored. Functions for bf16 are within 2^-13 of
        // the argument, the others within a few units.
        std::vector<double> value = doubles(pre), size(value.size());
        for (size_t i = 0; i < value.size(); ++i) {
          size[i] = std::abs(value[i]);
          value[i] = kernels::reference::activation(value[i], kind);
        }
        const double function = out == DType::kBFloat16 ? 0x1p-13 : 8 * 0x1p-24;
        compare(result, what + " y", y, value, {function + storage_roundoff(out), 1e-7}, size);
        compare(result, what + " y alone", alone, doubles(y), {});
        EXPECT_LE(result.worst, 1.0) << result.where << ", seed " << seed;
      }
    }
  }
}

std::string path_name(const ::testing::TestParamInfo<MatmulPath>& info) {
  const char* const names[] = {"Auto", "AmxBFloat16", "AmxFloat32", "Avx512BFloat16", "Avx512",
                               "Avx2", "Portable",    "Direct",     "FewRows"};
  return names[static_cast<int>(info.param)];
}
#ifdef DS_AMX_STAND_IN  // kernels_matmul tries all others
INSTANTIATE_TEST_SUITE_P(All, MatmulPaths,
                         ::testing::Values(MatmulPath::kAmxBFloat16, MatmulPath::kAmxFloat32),
                         path_name);
#else
INSTANTIATE_TEST_SUITE_P(All, MatmulPaths,
                         ::testing::Values(MatmulPath::kAuto, MatmulPath::kAmxBFloat16,
                                           MatmulPath::kAmxFloat32, MatmulPath::kAvx512BFloat16,
                                           MatmulPath::kAvx512, MatmulPath::kAvx2,
                                           MatmulPath::kPortable, MatmulPath::kDirect,
                                           MatmulPath::kFewRows),
                         path_name);
#endif

TEST(Matmul, SameBitsRunToRun) {
  const uint64_t seed = ds::fresh_seed();
  for (const DType dtype : kFloatTypes) {
    ThreadPool pool(2);
    start_digest();
    check_layouts(pool, seed, dtype, dtype, 300, 520, 90, MatmulPath::kAuto);
    const CaseDigest first = digest();
    start_digest();
    check_layouts(pool, seed, dtype, dtype, 300, 520, 90, MatmulPath::kAuto);
    EXPECT_EQ(digest().bits, first.bits) << "seed " << seed;
  }
}

TEST(Matmul, EmptyResultsTouchNothing) {
  ThreadPool pool(1);
  Matmul p;
  p.k = 5;
  p.n = 3;
  kernels::matmul(p, pool);  // no rows: no pointer is read
  p.m = 3;
  p.n = 0;
  kernels::matmul(p, pool);
}

// ---- the operator's checks ----

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

TEST(Linear, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  const auto fp32 = [](const Shape& shape) { return filled_tensor(DType::kFloat32, shape, 1); };
  const auto bf16 = [](const Shape& shape) { return filled_tensor(DType::kBFloat16, shape, 1); };
  Tensor y = fp32({2, 3, 5}), y16 = bf16({2, 3, 5}), dw16 = bf16({5, 4});
  const Tensor x = fp32({2, 3, 4}), w = fp32({5, 4}), none;

  EXPECT_THAT(message_of([&] { ops::linear(ctx, none, w, none, y); }),
              ::testing::HasSubstr("x is missing"));
  EXPECT_THAT(message_of([&] {
                ops::linear(ctx, x, fp32({4, 5}), none, y);
              }),
              ::testing::HasSubstr("w [4, 5] must be [5, 4]"));
  EXPECT_THAT(message_of([&] {
                ops::linear(ctx, fp32({3, 2, 4}), w, none, y);
              }),
              ::testing::HasSubstr("agree in all dimensions but the last"));
  EXPECT_THAT(message_of([&] { ops::linear(ctx, x, w, fp32({4}), y); }),
              ::testing::HasSubstr("bias [4] must be [5]"));
  EXPECT_THAT(message_of([&] {
                ops::linear(ctx, x, bf16({5, 4}), none, y);
              }),
              ::testing::HasSubstr("x is float32 but w is bfloat16"));
  EXPECT_THAT(message_of([&] { ops::linear(ctx, x, w, none, y16); }),
              ::testing::HasSubstr("y cannot be bfloat16"));
  EXPECT_THAT(message_of([&] {
                ops::linear(ctx, fp32({2, 3, 8}).slice(2, 0, 4), w, none, y);
              }),
              ::testing::HasSubstr("contiguous"));
  EXPECT_THAT(message_of([&] {
                ops::linear(ctx, filled_tensor(DType::kInt32, {2, 3, 4}, 1), w, none, y);
              }),
              ::testing::HasSubstr("float32, bfloat16 or float16"));
}

}  // namespace
}  // namespace ds::testing
