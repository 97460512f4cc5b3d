// Products of codes: against the same integers in double precision, and against the numbers that
// are rounded to codes.
#include "kernels/quantize/quantized_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "fresh_seed.h"
#include "kernels/case_util.h"
#include "kernels/matmul/matmul.h"
#include "ops/linear_checks.h"

namespace ds::testing {
namespace {

struct Weights {
  Weights(Random& random, const kernels::QuantizedShape& shape, ThreadPool& pool) {
    const Tensor w = random_tensor(random, DType::kFloat32, {shape.n, shape.k}, 0.3, 0.05);
    codes.resize(static_cast<size_t>(shape.code_bytes()));
    scales.resize(static_cast<size_t>(shape.scale_count()));
    minimum.resize(scales.size());
    quantize(shape, w.data<float>(), codes.data(), scales.data(), minimum.data(), pool);
    static_cast<kernels::QuantizedShape&>(matrix) = shape;
    matrix.codes = codes.data();
    matrix.scales = scales.data();
    matrix.minimum = shape.minima ? minimum.data() : nullptr;
    numbers.resize(static_cast<size_t>(shape.n * shape.k));
    dequantize(matrix, numbers.data(), pool);
    sizes.assign(numbers.begin(), numbers.end());
    if (!shape.minima) return;
    kernels::QuantizedMatrix minima = matrix;  // which lie as scales do
    minima.scales = minimum.data();
    for (int64_t i = 0; i < shape.n * shape.k; ++i) {
      const auto least = static_cast<double>(minima.scale(i / shape.k, i % shape.k));
      double& size = sizes[static_cast<size_t>(i)];
      size = std::abs(size - least) + std::abs(least);
    }
  }
  std::vector<uint8_t> codes;
  std::vector<bfloat16> scales, minimum;
  kernels::QuantizedMatrix matrix;
  std::vector<float> numbers;
  std::vector<double> sizes;  // of a number's summands, the steps above the minimum and that
};

// x as codes stand for it, by the definition in the header, in the arithmetic of fp32 that decides
// halves; and how far that is from x.
struct RoundedRows {
  RoundedRows(const std::vector<double>& x, int64_t m, int64_t k, int64_t piece)
      : rounded(x.size()), half_step(x.size()) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t begin = 0; begin < k; begin += piece) {
        const int64_t end = std::min(begin + piece, k);
        float most = 0;
        for (int64_t l = begin; l < end; ++l) {
          most = std::max(most, static_cast<float>(std::abs(x[at(i, l, k)])));
        }
        const float inverse = most > 1e-35f ? 127 / most : 0;
        for (int64_t l = begin; l < end; ++l) {
          const float code = std::nearbyint(static_cast<float>(x[at(i, l, k)]) * inverse);
          rounded[at(i, l, k)] = inverse == 0 ? 0 : static_cast<double>(code) * (most / 127);
          half_step[at(i, l, k)] = most / 127 / 2;
        }
      }
    }
  }
  static size_t at(int64_t i, int64_t l, int64_t k) { return static_cast<size_t>(i * k + l); }
  std::vector<double> rounded, half_step;
};

// Those that this CPU runs.
std::vector<kernels::CodePath> paths(const kernels::QuantizedShape& shape) {
  std::vector<kernels::CodePath> found;
  for (const auto path :
       {kernels::CodePath::kAmx, kernels::CodePath::kVnni, kernels::CodePath::kAvx2}) {
    if (kernels::quantized_matmul_runs(shape, path)) found.push_back(path);
  }
  return found;
}

// What products of up to so many rows ask for, on any path.
class Scratch {
 public:
  Scratch(const kernels::QuantizedShape& shape, int64_t rows) {
    int64_t bytes = 0;
    for (const auto path : paths(shape)) {
      bytes = std::max(bytes, kernels::quantized_matmul_scratch(shape, rows, path));
    }
    memory_.resize(static_cast<size_t>(bytes) + 64);
  }
  void* data() {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
  }

 private:
  std::vector<std::byte> memory_;
};

struct Case {
  int bits;
  bool minima;
  int64_t group, m, n, k;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "int" << c.bits << (c.minima ? " minima" : "") << " group " << c.group << " " << c.m
       << "x" << c.n << "x" << c.k;
}

std::vector<std::pair<kernels::CodePath, ThreadPool*>> combinations(
    const std::vector<kernels::CodePath>& paths, std::initializer_list<ThreadPool*> pools) {
  std::vector<std::pair<kernels::CodePath, ThreadPool*>> all;
  for (const auto path : paths) {
    for (ThreadPool* const pool : pools) all.emplace_back(path, pool);
  }
  return all;
}

// Elements of x that share a scale, as quantized_matmul.h has it.
int64_t piece_of(const kernels::QuantizedShape& shape) {
  const bool row = shape.groups() == 1;
  const int64_t zeros = (shape.k + 255) / 256 * 256 - shape.k;
  if ((row || shape.group % 256 == 0) && zeros <= shape.k / 8) return 256;
  return row || shape.group % 64 == 0 ? 64 : 32;
}

class QuantizedProducts : public ::testing::TestWithParam<Case> {};

TEST_P(QuantizedProducts, MatchTheDefinition) {
  const Case& c = GetParam();
  kernels::QuantizedShape shape;
  shape.bits = c.bits;
  shape.minima = c.minima;
  shape.n = c.n;
  shape.k = c.k;
  shape.group = c.group;
  if (paths(shape).empty()) GTEST_SKIP() << "not on this CPU";
  const int64_t piece = piece_of(shape);
  const uint64_t seed = ds::fresh_seed();
  Random random(seed);
  ThreadPool pool(1), more(3);
  const Weights w(random, shape, pool);
  const std::vector<double> w64(w.numbers.begin(), w.numbers.end());
  for (const DType type : kFloatTypes) {
    const Tensor x = random_tensor(random, type, {c.m, c.k});
    std::vector<double> x64 = doubles(x);
    // A piece of zeros, and one number that dwarfs those beside it.
    std::fill_n(x64.begin(), std::min(piece, c.k), 0.0);
    x64.back() = 300;
    set_doubles(x, x64);
    const Tensor bias = random_tensor(random, type, {c.n});
    const std::vector<double> bias64 = doubles(bias);
    const RoundedRows codes(x64, c.m, c.k, piece);
    for (const DType out : {type, DType::kFloat32}) {
      std::vector<double> expected(static_cast<size_t>(c.m * c.n)), magnitude(expected.size()),
          exact(expected.size());
      kernels::MatmulReference product{.m = c.m,
                                       .n = c.n,
                                       .k = c.k,
                                       .a = codes.rounded.data(),
                                       .b = w64.data(),
                                       .b_transposed = true,
                                       .bias = bias64.data(),
                                       .c = expected.data()};
      kernels::matmul_ref(product);
      product.a = x64.data();
      product.c = exact.data();
      kernels::matmul_ref(product);
      std::vector<double> unused(expected.size());
      product.a = codes.rounded.data();
      product.b = w.sizes.data();
      product.c = unused.data();
      product.magnitude = magnitude.data();
      kernels::matmul_ref(product);
      std::optional<uint64_t> bits;  // of all paths and any number of threads
      for (const auto& [path, threads] : combinations(paths(shape), {&pool, &more})) {
        Scratch scratch(shape, c.m);
        const Tensor y = guarded_tensor(out, {c.m, c.n});
        kernels::quantized_matmul({.w = w.matrix,
                                   .type = ops::float_type(x),
                                   .out = ops::float_type(y),
                                   .m = c.m,
                                   .x = x.raw(),
                                   .bias = bias.raw(),
                                   .y = y.raw(),
                                   .scratch = scratch.data()},
                                  *threads, path);
        // Of a piece: the sum to fp32, the product of scales, one multiply-add.
        CaseResult result;
        start_digest();
        const double sums = (static_cast<double>(c.k) / static_cast<double>(piece) + 6) * 0x1p-24;
        compare(result, "y", y, expected, {sums + storage_roundoff(out), 1e-6}, magnitude);
        EXPECT_LE(result.worst, 1.0)
            << result.where << ", path " << static_cast<int>(path) << ", seed " << seed;
        EXPECT_EQ(digest().bits, bits.value_or(digest().bits))
            << "path " << static_cast<int>(path) << ", seed " << seed;
        bits = digest().bits;
        const std::vector<double> got = doubles(y);
        for (int64_t i = 0; i < c.m; ++i) {
          for (int64_t j = 0; j < c.n; ++j) {
            double bound = 0;
            for (int64_t l = 0; l < c.k; ++l) {
              bound += codes.half_step[RoundedRows::at(i, l, c.k)] *
                       std::abs(w64[RoundedRows::at(j, l, c.k)]);
            }
            const size_t at = RoundedRows::at(i, j, c.n);
            ASSERT_LE(std::abs(got[at] - exact[at]),
                      bound * 1.0001 + (sums * 4 + storage_roundoff(out)) * magnitude[at] + 1e-6)
                << i << ", " << j << ", seed " << seed;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantizedProducts,
    ::testing::Values(Case{8, false, 0, 1, 1, 1}, Case{8, false, 64, 9, 33, 200},
                      Case{8, false, 32, 15, 49, 136}, Case{8, false, 0, 31, 70, 1300},
                      Case{8, false, 0, 35, 70, 1800}, Case{8, false, 256, 8, 50, 700},
                      Case{8, false, 512, 17, 40, 5000}, Case{4, false, 256, 29, 33, 1024},
                      Case{4, true, 0, 33, 65, 256}, Case{4, true, 768, 6, 20, 2290},
                      Case{4, false, 64, 14, 32, 128}, Case{4, false, 32, 29, 17, 72},
                      Case{4, false, 128, 43, 100, 4500}, Case{4, true, 64, 10, 65, 192},
                      Case{4, true, 96, 20, 40, 330}, Case{4, true, 0, 300, 48, 65}));

// Few rows are multiplied another way than many, with the same bits: so the first rows of a batch
// are those of fewer, at every size at which the ways, or the blocks of rows, change.
TEST(QuantizedProducts, ARowDoesNotDependOnHowManyComeWithIt) {
  const uint64_t seed = ds::fresh_seed();
  Random random(seed);
  ThreadPool pool(2);
  constexpr int64_t kMost = 150;
  for (const auto& [bits, minima, group] : {std::tuple{8, false, 64},
                                            {8, false, 32},
                                            {8, false, 0},
                                            {4, false, 64},
                                            {4, false, 96},
                                            {4, true, 64},
                                            {4, true, 32},
                                            {4, false, 256},
                                            {4, true, 0}}) {
    kernels::QuantizedShape shape;
    shape.bits = bits;
    shape.minima = minima;
    shape.n = 70;
    shape.k = 4400;  // more than two rounds, none of them whole
    shape.group = group;
    if (paths(shape).empty()) GTEST_SKIP() << "not on this CPU";
    const Weights w(random, shape, pool);
    const Tensor x = random_tensor(random, DType::kBFloat16, {kMost, shape.k});
    Scratch scratch(shape, kMost);
    std::vector<float> expected;
    for (const auto path : paths(shape)) {
      for (const int64_t rows :
           {kMost, 1L, 2L, 4L, 5L, 7L, 8L, 9L, 16L, 31L, 32L, 33L, 64L, 65L, 128L}) {
        std::vector<float> y(static_cast<size_t>(rows * shape.n));
        kernels::quantized_matmul({.w = w.matrix,
                                   .type = kernels::FloatType::kBFloat16,
                                   .m = rows,
                                   .x = x.raw(),
                                   .y = y.data(),
                                   .scratch = scratch.data()},
                                  pool, path);
        if (expected.empty()) expected = y;
        EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
            << bits << " bits, group " << group << ", " << rows << " rows, seed " << seed;
      }
    }
  }
}

TEST(QuantizedProducts, NumbersThatAreNotFiniteMakeTheirRowNaN) {
  kernels::QuantizedShape shape;
  shape.n = 20;
  shape.k = 130;
  shape.group = 64;
  if (paths(shape).empty()) GTEST_SKIP() << "not on this CPU";
  const uint64_t seed = ds::fresh_seed();
  Random random(seed);
  ThreadPool pool(2);
  const Weights w(random, shape, pool);
  constexpr int64_t kRows = 12;
  const Tensor x = random_tensor(random, DType::kFloat32, {kRows, shape.k});
  x.data<float>()[3 * shape.k + 129] = std::numeric_limits<float>::infinity();
  x.data<float>()[7 * shape.k] = std::numeric_limits<float>::quiet_NaN();
  Scratch scratch(shape, kRows);
  for (const auto path : paths(shape)) {
    std::vector<float> y(static_cast<size_t>(kRows * shape.n));
    kernels::quantized_matmul(
        {.w = w.matrix, .m = kRows, .x = x.raw(), .y = y.data(), .scratch = scratch.data()}, pool,
        path);
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < shape.n; ++j) {
        EXPECT_EQ(std::isnan(y[static_cast<size_t>(i * shape.n + j)]), i == 3 || i == 7)
            << i << ", " << j << ", seed " << seed;
      }
    }
  }
}

// Few rows whose numbers are far apart, large, small or not finite: each row has the error of its
// own numbers, whatever the arithmetic is (with AVX2 that of fixed-point numbers in pieces of 64).
TEST(QuantizedRows, KeepTheirAccuracyAtAnySize) {
  const uint64_t seed = ds::fresh_seed();
  Random random(seed);
  ThreadPool pool(2);
  constexpr int64_t kRows = 7;
  for (const bool minima : {false, true}) {
    kernels::QuantizedShape shape;
    shape.bits = 4;
    shape.minima = minima;
    shape.n = 35;
    shape.k = 330;
    shape.group = 96;
    const Weights w(random, shape, pool);
    const Tensor x = random_tensor(random, DType::kFloat32, {kRows, shape.k});
    auto* const numbers = x.data<float>();
    const float factors[kRows] = {1, 1e30f, 1e-25f, 1, 1, 1, 0};
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t l = 0; l < shape.k; ++l) numbers[i * shape.k + l] *= factors[i];
    }
    numbers[3 * shape.k + 100] = 1e6f;
    numbers[4 * shape.k + 329] = std::numeric_limits<float>::infinity();
    numbers[5 * shape.k] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> y(static_cast<size_t>(kRows * shape.n));
    kernels::quantized_gemv({.w = w.matrix, .m = kRows, .x = x.raw(), .y = y.data()}, pool);
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < shape.n; ++j) {
        const float got = y[static_cast<size_t>(i * shape.n + j)];
        EXPECT_EQ(std::isfinite(got), i != 4 && i != 5) << i << ", " << j << ", seed " << seed;
        if (i == 4 || i == 5) continue;
        double sum = 0, bound = 0;
        for (int64_t begin = 0; begin < shape.k; begin += shape.group) {
          const int64_t end = std::min(begin + shape.group, shape.k);
          double most = 0, sizes = 0;
          for (int64_t l = begin; l < end; ++l) {
            const double number = numbers[i * shape.k + l];
            const size_t at = RoundedRows::at(j, l, shape.k);
            sum += number * static_cast<double>(w.numbers[at]);
            // Codes are taken from 0 on, so that sums have 8 steps more than their elements.
            const double size = std::abs(w.sizes[at]) + 8 * std::abs(double{w.matrix.scale(j, l)});
            bound += 64 * 0x1p-24 * std::abs(number) * size;  // rounding of sums
            most = std::max(most, std::abs(number));
            sizes += size;
          }
          bound += 0x1p-22 * most * sizes;
        }
        EXPECT_LE(std::abs(static_cast<double>(got) - sum), bound)
            << i << ", " << j << ", seed " << seed;
      }
    }
  }
}

TEST(QuantizedProducts, GroupsThatPiecesDoNotFitAreNotTaken) {
  kernels::QuantizedShape shape;
  shape.n = 16;
  shape.k = 400;
  for (const int64_t group : {8, 24, 40, 72}) {
    shape.group = group;
    EXPECT_TRUE(paths(shape).empty()) << group;
  }
}

}  // namespace
}  // namespace ds::testing
