// What the operator table cannot say about matrix products: tiles, strides, the widening path, and
// that OpenMP is left alone.
#include "kernels/matmul/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <filesystem>
#include <thread>

#include "kernels/case_util.h"
#include "ops/linear.h"

namespace ds::testing {
namespace {

using kernels::Matmul;
using kernels::MatmulPath;
using kernels::MatmulType;

int64_t process_threads() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

MatmulType type_of(DType dtype) {
  if (dtype == DType::kFloat16) return MatmulType::kFloat16;
  return dtype == DType::kFloat32 ? MatmulType::kFloat32 : MatmulType::kBFloat16;
}

// Every layout, with rows longer than the matrix, on the given path. Returns the bits of C.
CaseResult check_layouts(ThreadPool& pool, uint64_t seed, DType in, DType out, int64_t m, int64_t n,
                         int64_t k, MatmulPath path) {
  Random random(seed);
  CaseResult result;
  for (int layout = 0; layout < 16; ++layout) {
    const bool ta = (layout & 1) != 0, tb = (layout & 2) != 0;
    const bool accumulate = (layout & 4) != 0, with_bias = (layout & 8) != 0;
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
    kernels::matmul_ref(m, n, k, a64.data(), ta, b64.data(), tb,
                        with_bias ? bias64.data() : nullptr, accumulate, expected.data(),
                        magnitude.data());
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
  const uint64_t seed = std::random_device()();
  const std::pair<DType, DType> types[] = {{DType::kFloat32, DType::kFloat32},
                                           {DType::kBFloat16, DType::kBFloat16},
                                           {DType::kBFloat16, DType::kFloat32},
                                           {DType::kFloat16, DType::kFloat16},
                                           {DType::kFloat16, DType::kFloat32}};
  for (const auto& [in, out] : types) {
    const int64_t sizes[][3] = {{1, 1, 1}, {7, 5, 9}, {130, 260, 260}, {200, 40, 300}, {3, 4, 0}};
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

INSTANTIATE_TEST_SUITE_P(All, MatmulPaths, ::testing::Values(MatmulPath::kAuto, MatmulPath::kWiden),
                         [](const auto& path) {
                           return path.param == MatmulPath::kAuto ? "Library" : "Widened";
                         });

TEST(Matmul, TilesCoverAndDependOnTheProblemOnly) {
  for (const MatmulType type :
       {MatmulType::kFloat32, MatmulType::kBFloat16, MatmulType::kFloat16}) {
    for (const bool gradient : {false, true}) {
      for (const int64_t m : {1, 15, 100, 1024, 2304, 3000, 4000, 50304}) {
        for (const int64_t n : {1, 63, 768, 50304}) {
          Matmul p;
          p.m = m;
          p.n = n;
          p.k = 768;
          p.in = type;
          p.a.transposed = gradient;
          const kernels::MatmulTiles tiles = kernels::matmul_tiles(p);
          EXPECT_GE(tiles.rows, 1);
          EXPECT_LE(tiles.rows, m);
          EXPECT_GE(tiles.columns, 1);
          EXPECT_LE(tiles.columns, n);
          EXPECT_GE(tiles.depth, 1);
          // Two threads share the work of every product that is worth it.
          if (m < 512 || n < 512) continue;
          EXPECT_LE(2 * tiles.rows * tiles.columns, m * n + 64 * n);
        }
      }
    }
  }
}

TEST(Matmul, SameBitsRunToRun) {
  const uint64_t seed = std::random_device()();
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

TEST(Matmul, StartsNoOpenMpThreadsAndKeepsTheCallersSetting) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(5);
  ThreadPool pool(2);
  const int64_t threads = process_threads();
  for (const DType dtype : kFloatTypes) {
    EXPECT_LE(check_layouts(pool, 1, dtype, dtype, 300, 520, 90, MatmulPath::kAuto).worst, 1.0);
  }
  EXPECT_EQ(process_threads(), threads);
  EXPECT_EQ(omp_get_max_threads(), 5);
  // A thread that never multiplied still has the process's default.
  int elsewhere = 0;
  std::thread([&] { elsewhere = omp_get_max_threads(); }).join();
  EXPECT_EQ(elsewhere, before);
  omp_set_num_threads(before);
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
