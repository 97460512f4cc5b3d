// Rows for dropout: the mask is exact, whatever the sample, their number and their length.
#include <algorithm>

#include "kernels/case_util.h"
#include "kernels/dropout/dropout.h"
#include "ops/dropout.h"

namespace ds::testing::dropout_rows {
namespace {

namespace ref = kernels::reference;

RandomStream random_stream(Random& random) {
  return {random(), static_cast<uint32_t>(random()), static_cast<uint32_t>(random()),
          static_cast<uint32_t>(random())};
}

OpCase mask_case(DType dtype, int64_t samples, int64_t each, double p) {
  const Shape shape{samples, each};
  const int64_t n = shape.elements();
  OpCase row;
  row.name = str_cat("dropout/", type_name(dtype), "/", samples, "x", each, "/p", p);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const RandomStream stream = random_stream(random);
    const Tensor x = random_tensor(random, dtype, shape),
                 residual = random_tensor(random, dtype, shape);
    const std::vector<double> xv = doubles(x), rv = doubles(residual);
    std::vector<double> expected(xv.size()), scale(xv.size());
    // Dropped elements are expected as 0 and must be 0: the tolerance is relative.
    const Tolerance tolerance{unit_roundoff(dtype) + 0x1p-22, 0};
    ref::dropout(stream, each, p, xv.data(), nullptr, n, expected.data());
    Tensor y = guarded_tensor(dtype, shape);
    ops::dropout(ctx, x, {}, p, stream, y);
    compare(result, "y", y, expected, p == 0 ? Tolerance{} : tolerance);
    y = copy_of(x);
    ops::dropout(ctx, y, {}, p, stream, y);
    compare(result, "y over x", y, expected, tolerance);
    y = copy_of(x);
    ops::dropout_backward(ctx, y, p, stream, y);
    compare(result, "dx over dy", y, expected, tolerance);

    for (size_t i = 0; i < scale.size(); ++i) {
      scale[i] = std::abs(expected[i]) + std::abs(rv[i]);
    }
    ref::dropout(stream, each, p, xv.data(), rv.data(), n, expected.data());
    for (size_t i = 0; i < scale.size(); ++i) {
      scale[i] = 0x1p-22 * scale[i] + unit_roundoff(dtype) * std::abs(expected[i]);
    }
    y = guarded_tensor(dtype, shape);
    ops::dropout(ctx, x, residual, p, stream, y);
    compare(result, "residual + y", y, expected, {1, 0}, scale);
    y = copy_of(residual);
    ops::dropout(ctx, x, y, p, stream, y);
    compare(result, "over the residual", y, expected, {1, 0}, scale);
    return result;
  };
  if (dtype == DType::kFloat32 && n > 0 && n < 100 && p > 0 && p < 0.9) {
    row.gradient = [=](const OpContext& ctx, uint64_t seed) {
      Random random(seed);
      CaseResult result;
      const RandomStream stream = random_stream(random);
      const Tensor x = random_tensor(random, dtype, shape),
                   dy = random_tensor(random, dtype, shape);
      Tensor dx = guarded_tensor(dtype, shape);
      ops::dropout_backward(ctx, dy, p, stream, dx);
      const std::vector<double> weights = doubles(dy);
      const auto objective = [&](const std::vector<double>& values) {
        std::vector<double> y(values.size());
        ref::dropout(stream, each, p, values.data(), nullptr, n, y.data());
        return weighted_sum(weights, y);
      };
      compare_gradient(result, "dx", dx, doubles(x), objective, {3e-6, 0});
      return result;
    };
  }
  return row;
}

// What is dropped is a fraction p: within six deviations of the binomial distribution.
OpCase fraction_case(double p) {
  OpCase row;
  row.name = str_cat("dropout_fraction/p", p);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    constexpr int64_t kElements = 200000;
    Random random(seed);
    CaseResult result;
    const Tensor x = filled_tensor(DType::kFloat32, {1, kElements}, 1);
    Tensor y = guarded_tensor(DType::kFloat32, {1, kElements});
    ops::dropout(ctx, x, {}, p, random_stream(random), y);
    const std::vector<double> values = doubles(y);
    const auto dropped = static_cast<double>(std::ranges::count(values, 0.0));
    const double deviation = std::sqrt(kElements * p * (1 - p));
    compare_value(result, "dropped", dropped, kElements * p, {0, 6 * deviation});
    return result;
  };
  return row;
}

OpCase bench(DType dtype, int64_t rows, bool with_residual) {
  const Shape shape{1, rows, 768};
  OpCase row;
  row.name = str_cat(with_residual ? "dropout_residual/" : "dropout/", type_name(dtype), "/", rows,
                     "x768");
  row.bytes = static_cast<double>((with_residual ? 3 : 2) * shape.elements() * dtype_size(dtype));
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, dtype, shape);
    const Tensor residual = with_residual ? bench_tensor(ctx, dtype, shape) : Tensor();
    Tensor y = bench_tensor(ctx, dtype, shape);
    return [=]() mutable { ops::dropout(ctx, x, residual, 0.1, {1, 2, 3}, y); };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : {0, 1, 5, 64, 1000}) rows.push_back(mask_case(dtype, 1, n, 0.25));
    rows.push_back(mask_case(dtype, 0, 7, 0.25));
    for (const int64_t each : {1, 2, 3, 4, 7, 12, 37, 1023, 2048}) {
      rows.push_back(mask_case(dtype, 5, each, 0.5));
      rows.push_back(mask_case(dtype, 3, each, 0.1));
    }
    // Over chunk borders.
    rows.push_back(mask_case(dtype, 1, 50001, 0.1));
    rows.push_back(mask_case(dtype, 7, 10003, 0.1));
    rows.push_back(mask_case(dtype, 9, 4096, 0.1));
    for (const double p : {0.0, 1e-12, 0.999}) rows.push_back(mask_case(dtype, 3, 1667, p));
    for (const int64_t r : {512, 4096}) {
      rows.push_back(bench(dtype, r, false));
      rows.push_back(bench(dtype, r, true));
    }
  }
  for (const double p : {0.01, 0.1, 0.5}) rows.push_back(fraction_case(p));
  return rows;
}

}  // namespace ds::testing::dropout_rows
