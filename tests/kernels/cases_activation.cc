// Rows of bias + GELU, both forms.
#include "kernels/activation/bias_gelu.h"
#include "kernels/case_util.h"
#include "ops/activation.h"

namespace ds::testing::activation_rows {
namespace {

struct Setting {
  DType dtype;
  ops::Gelu kind;
  bool bias;
  int64_t rows;
  int64_t columns;

  kernels::GeluForm form() const {
    return kind == ops::Gelu::kTanh ? kernels::GeluForm::kTanh : kernels::GeluForm::kErf;
  }
  std::string name(const char* what) const {
    return str_cat("gelu/", what, kind == ops::Gelu::kTanh ? "/tanh" : "/erf", bias ? "" : "/plain",
                   "/", type_name(dtype), "/", rows, "x", columns);
  }
};

struct Data {
  Tensor x, bias, dy;
  std::vector<double> v, dy64;  // v = x + bias
};

Data make_data(uint64_t seed, const Setting& s) {
  Random random(seed);
  Data d;
  // Wide enough to reach both tails; a few values far outside.
  d.x = random_tensor(random, s.dtype, {s.rows, s.columns}, 2.5);
  if (d.x.elements() > 8) {
    std::vector<double> x = doubles(d.x);
    x[0] = 1e4;
    x[1] = -1e4;
    x[2] = 0;
    const double far = s.dtype == DType::kFloat16 ? 6e4 : 3e30;
    x[3] = far;
    x[4] = -far;
    set_doubles(d.x, x);
  }
  if (s.bias) d.bias = random_tensor(random, s.dtype, {s.columns});
  d.dy = random_tensor(random, s.dtype, {s.rows, s.columns});
  d.v = doubles(d.x);
  const std::vector<double> bias = doubles(d.bias);
  for (size_t i = 0; s.bias && i < d.v.size(); ++i) {
    d.v[i] += bias[i % static_cast<size_t>(s.columns)];
  }
  d.dy64 = doubles(d.dy);
  return d;
}

// Value: 8 units of roundoff of |v| (rounding of x + bias, of the polynomial in v, exp and the
// division; the erf form adds the absolute error of erf). In the tanh form the exponent grows like
// 0.07 |v|^3, but the result then falls faster. Derivative: twice that relative to 1.2, its largest
// value, with the rounding of v weighed by the second derivative and the exponent.
constexpr double kValue = 8 * 0x1p-24;
constexpr double kDerivative = 16 * 0x1p-24;

// For bf16 the functions are rough: this much of a value (a reciprocal within 2^-14, an exponential
// and the polynomial under it within 2^-13.5 each), and of the largest derivative: an 8th and a
// 16th of what rounding to bf16 does.
double rough_value(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-12 : 0; }
double rough(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-13 : 0; }

CaseResult check(const OpContext& ctx, uint64_t seed, const Setting& s) {
  const Data d = make_data(seed, s);
  const double rounding = storage_roundoff(s.dtype);
  CaseResult result;

  std::vector<double> y(d.v.size()), dx(d.v.size()), y_scale(d.v.size()), dx_scale(d.v.size());
  for (size_t i = 0; i < d.v.size(); ++i) {
    y[i] = kernels::gelu_ref(d.v[i], s.form());
    dx[i] = d.dy64[i] * kernels::gelu_derivative_ref(d.v[i], s.form());
    // Allowed errors are absolute sums of two terms, so they are given as the scale itself.
    y_scale[i] = kValue * std::abs(d.v[i]) + (rounding + rough_value(s.dtype)) * std::abs(y[i]);
    dx_scale[i] = (kDerivative + rough(s.dtype)) * std::abs(d.dy64[i]) + rounding * std::abs(dx[i]);
  }
  const Tolerance by_scale{1, 1e-38};
  Tensor out = guarded_tensor(s.dtype, d.x.shape());
  ops::bias_gelu(ctx, d.x, d.bias, s.kind, out);
  compare(result, "y", out, y, by_scale, y_scale);
  Tensor in_place = copy_of(d.x);
  ops::bias_gelu(ctx, in_place, d.bias, s.kind, in_place);
  compare(result, "y in place", in_place, doubles(out), {});

  Random random(seed + 1);
  Tensor none, db = random_tensor(random, DType::kFloat32, {s.columns});
  std::vector<double> sums = doubles(db), sums_scale(sums.size());
  const size_t columns = static_cast<size_t>(s.columns);
  // fp32 sums of `rows` terms: 4 sqrt(rows) units of the sum of magnitudes, and each term's error.
  const double sum_unit = 4 * std::sqrt(static_cast<double>(s.rows) + 2) * 0x1p-24;
  for (size_t j = 0; j < columns; ++j) sums_scale[j] = sum_unit * std::abs(sums[j]);
  for (size_t i = 0; i < dx.size(); ++i) {
    sums[i % columns] += dx[i];
    sums_scale[i % columns] +=
        sum_unit * std::abs(dx[i]) + (kDerivative + rough(s.dtype)) * std::abs(d.dy64[i]);
  }
  Tensor din = guarded_tensor(s.dtype, d.x.shape());
  ops::bias_gelu_backward(ctx, d.dy, d.x, d.bias, s.kind, din, db);
  compare(result, "dx", din, dx, by_scale, dx_scale);
  compare(result, "db", db, sums, by_scale, sums_scale);
  in_place = copy_of(d.dy);
  ops::bias_gelu_backward(ctx, in_place, d.x, d.bias, s.kind, in_place, none);
  compare(result, "dx in place, no db", in_place, doubles(din), {});
  return result;
}

CaseResult gradient(const OpContext& ctx, uint64_t seed, const Setting& s) {
  Random random(seed);
  const Tensor x = random_tensor(random, s.dtype, {s.rows, s.columns}, 1.5);
  const Tensor bias = random_tensor(random, s.dtype, {s.columns});
  const Tensor dy = random_tensor(random, s.dtype, {s.rows, s.columns});
  const std::vector<double> dy64 = doubles(dy);
  const auto objective = [&](const std::vector<double>& xs, const std::vector<double>& bs) {
    std::vector<double> y(xs.size());
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = kernels::gelu_ref(xs[i] + bs[i % static_cast<size_t>(s.columns)], s.form());
    }
    return weighted_sum(dy64, y);
  };
  Tensor dx = guarded_tensor(s.dtype, x.shape());
  Tensor db = filled_tensor(DType::kFloat32, {s.columns}, 0);
  ops::bias_gelu_backward(ctx, dy, x, bias, s.kind, dx, db);
  CaseResult result;
  const double rounding = storage_roundoff(s.dtype);
  double largest = 0;
  for (const double g : dy64) largest = std::max(largest, std::abs(g));
  const double error = rough(s.dtype) * largest;  // of one term, however small its derivative
  compare_gradient(result, "dx", dx, doubles(x),
                   [&](const std::vector<double>& xs) { return objective(xs, doubles(bias)); },
                   {3e-6 + rounding, 1e-7 + error});
  compare_gradient(result, "db", db, doubles(bias),
                   [&](const std::vector<double>& bs) { return objective(doubles(x), bs); },
                   {3e-6, 1e-6 + static_cast<double>(s.rows) * error});
  return result;
}

OpCase timed(const Setting& s, bool backward) {
  OpCase row;
  row.name = s.name(backward ? "backward" : "forward");
  row.bytes = static_cast<double>(s.rows * s.columns * dtype_size(s.dtype)) * (backward ? 3 : 2);
  row.prepare = [s, backward](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, s.dtype, {s.rows, s.columns});
    const Tensor bias = bench_tensor(ctx, s.dtype, {s.columns});
    const Tensor y = bench_tensor(ctx, s.dtype, {s.rows, s.columns});
    const Tensor dx = bench_tensor(ctx, s.dtype, {s.rows, s.columns});
    const Tensor db = bench_tensor(ctx, DType::kFloat32, {s.columns});
    return [ctx, s, backward, x, bias, y, dx, db]() {
      Tensor out = backward ? dx : y, sums = db;
      if (backward) {
        ops::bias_gelu_backward(ctx, y, x, bias, s.kind, out, sums);
      } else {
        ops::bias_gelu(ctx, x, bias, s.kind, out);
      }
    };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const ops::Gelu kind : {ops::Gelu::kTanh, ops::Gelu::kErf}) {
      const std::pair<int64_t, int64_t> sizes[] = {{1, 1},   {3, 5},    {0, 7},     {1, 17},
                                                   {33, 65}, {300, 40}, {2, 20000}, {1000, 129}};
      for (const auto& [m, n] : sizes) {
        for (const bool bias : {true, false}) {
          const Setting s{dtype, kind, bias, m, n};
          OpCase row;
          row.name = s.name("check");
          row.check = [s](const OpContext& ctx, uint64_t seed) { return check(ctx, seed, s); };
          if (bias && m * n > 0 && m * n <= 20) {
            row.gradient = [s](const OpContext& ctx, uint64_t seed) {
              return gradient(ctx, seed, s);
            };
          }
          rows.push_back(std::move(row));
        }
      }
      // The MLP of GPT-2 124M, 4 sequences of 256 tokens.
      const Setting gpt2{dtype, kind, true, 1024, 3072};
      rows.push_back(timed(gpt2, false));
      rows.push_back(timed(gpt2, true));
    }
  }
  return rows;
}

}  // namespace ds::testing::activation_rows
