// Rows of the linear layers: y = x w^T + b and its three gradients.
#include "kernels/activation/bias_gelu.h"
#include "kernels/case_util.h"
#include "kernels/matmul/matmul.h"
#include "ops/linear.h"

namespace ds::testing::linear_rows {
namespace {

struct Sizes {
  int64_t m, n, k;  // tokens, outputs, inputs
};

std::string row_name(const char* op, DType dtype, const Sizes& s) {
  return str_cat("linear/", op, "/", type_name(dtype), "/", s.m, "x", s.n, "x", s.k);
}

// Errors of an fp32 sum of d products in any order stay below (d + 2) units of roundoff of the sum
// of magnitudes, and usually near the square root of that; the bound here is the square root times
// 4 plus the rounding of the result to its type. 16-bit products are exact in fp32.
Tolerance sum_tolerance(int64_t depth, DType out) {
  const double sum = 4 * std::sqrt(static_cast<double>(depth) + 2) * unit_roundoff(DType::kFloat32);
  return {sum + storage_roundoff(out), 1e-30};
}

struct Data {
  Tensor x, w, bias, dy;
  std::vector<double> x64, w64, bias64, dy64;
};

Data make_data(uint64_t seed, DType dtype, const Sizes& s) {
  Random random(seed);
  Data d;
  d.x = random_tensor(random, dtype, {s.m, s.k});
  d.w = random_tensor(random, dtype, {s.n, s.k});
  d.bias = random_tensor(random, dtype, {s.n});
  d.dy = random_tensor(random, dtype, {s.m, s.n});
  d.x64 = doubles(d.x);
  d.w64 = doubles(d.w);
  d.bias64 = doubles(d.bias);
  d.dy64 = doubles(d.dy);
  return d;
}

void compare_product(CaseResult& result, const std::string& what, const Tensor& actual, int64_t m,
                     int64_t n, int64_t k, const std::vector<double>& a, bool ta,
                     const std::vector<double>& b, bool tb, const double* bias,
                     const std::vector<double>& before) {
  std::vector<double> expected(static_cast<size_t>(m * n)), magnitude(expected.size());
  if (!before.empty()) expected = before;
  kernels::matmul_ref({.m = m,
                       .n = n,
                       .k = k,
                       .a = a.data(),
                       .a_transposed = ta,
                       .b = b.data(),
                       .b_transposed = tb,
                       .bias = bias,
                       .accumulate = !before.empty(),
                       .c = expected.data(),
                       .magnitude = magnitude.data()});
  Tolerance tolerance = sum_tolerance(k + 2, DType::kFloat32);
  tolerance.relative +=
      bias != nullptr ? biased_roundoff(actual.dtype()) : storage_roundoff(actual.dtype());
  compare(result, what, actual, expected, tolerance, magnitude);
}

// (dy w) gelu'(pre), and its column sums where the product does not leave them to that of dw.
void check_grad_input_gelu(CaseResult& result, const OpContext& ctx, const Data& d, Random& random,
                           DType dtype, const Sizes& s) {
  const Tensor pre = random_tensor(random, dtype, {s.m, s.k}, 2);
  const std::vector<double> pre64 = doubles(pre);
  for (const ops::Gelu kind : {ops::Gelu::kTanh, ops::Gelu::kErf}) {
    const auto form = kind == ops::Gelu::kTanh ? kernels::GeluForm::kTanh : kernels::GeluForm::kErf;
    std::vector<double> expected(pre64.size()), magnitude(pre64.size());
    kernels::matmul_ref({.m = s.m,
                         .n = s.k,
                         .k = s.n,
                         .a = d.dy64.data(),
                         .b = d.w64.data(),
                         .c = expected.data(),
                         .magnitude = magnitude.data()});
    // The product may be rounded to the type before the derivative, which is below 1.13 and by
    // itself within 2^-13 (bf16) or 2^-20 of the largest; so may be the result.
    const Tolerance product = sum_tolerance(s.n, dtype);
    const double slope = dtype == DType::kBFloat16 ? 0x1p-12 : 0x1p-19;
    std::vector<double> allowed(pre64.size());
    for (size_t i = 0; i < pre64.size(); ++i) {
      const double sum = std::abs(expected[i]);
      expected[i] *= kernels::gelu_derivative_ref(pre64[i], form);
      allowed[i] = 1.13 * product.relative * magnitude[i] + slope * sum +
                   storage_roundoff(dtype) * std::abs(expected[i]);
    }
    Tensor dpre = guarded_tensor(dtype, {s.m, s.k});
    Tensor db = random_tensor(random, DType::kFloat32, {s.k});
    std::vector<double> db64 = doubles(db);
    const bool summed = ops::linear_grad_input_gelu(ctx, d.dy, d.w, pre, kind, dpre, db);
    compare(result, "dpre", dpre, expected, {1, 1e-30}, allowed);
    std::vector<double> db_allowed(db64.size());
    for (size_t j = 0; j < db64.size(); ++j) db_allowed[j] = std::abs(db64[j]) * 0x1p-22;
    for (size_t i = 0; summed && i < expected.size(); ++i) {
      const size_t column = i % static_cast<size_t>(s.k);
      db64[column] += expected[i];
      db_allowed[column] +=
          allowed[i] + std::abs(expected[i]) * sum_tolerance(s.m, DType::kFloat32).relative;
    }
    compare(result, summed ? "db of dpre" : "db left alone", db, db64, {1, 1e-30}, db_allowed);
  }
}

CaseResult check(const OpContext& ctx, uint64_t seed, DType dtype, const Sizes& s) {
  const Data d = make_data(seed, dtype, s);
  Random random(seed + 1);
  CaseResult result;
  for (const DType out : {dtype, DType::kFloat32}) {
    Tensor y = guarded_tensor(out, {s.m, s.n});
    ops::linear(ctx, d.x, d.w, d.bias, y);
    compare_product(result, "y", y, s.m, s.n, s.k, d.x64, false, d.w64, true, d.bias64.data(), {});
    y = guarded_tensor(out, {s.m, s.n});
    ops::linear(ctx, d.x, d.w, Tensor(), y);
    compare_product(result, "y without bias", y, s.m, s.n, s.k, d.x64, false, d.w64, true, nullptr,
                    {});
    Tensor dx = guarded_tensor(out, {s.m, s.k});
    ops::linear_grad_input(ctx, d.dy, d.w, dx);
    compare_product(result, "dx", dx, s.m, s.k, s.n, d.dy64, false, d.w64, false, nullptr, {});
    const std::vector<double> before = doubles(dx);
    ops::linear_grad_input(ctx, d.dy, d.w, dx, true);
    compare_product(result, "dx accumulated", dx, s.m, s.k, s.n, d.dy64, false, d.w64, false,
                    nullptr, before);
  }
  Tensor dw = random_tensor(random, DType::kFloat32, {s.n, s.k});
  const std::vector<double> dw_before = doubles(dw);
  ops::linear_grad_weight(ctx, d.dy, d.x, dw);
  compare_product(result, "dw", dw, s.n, s.k, s.m, d.dy64, true, d.x64, false, nullptr, dw_before);

  dw = guarded_tensor(DType::kFloat32, {s.n, s.k});
  ops::linear_grad_weight(ctx, d.dy, d.x, dw, false);
  compare_product(result, "dw overwritten", dw, s.n, s.k, s.m, d.dy64, true, d.x64, false, nullptr,
                  {});

  Tensor y = guarded_tensor(dtype, {s.m, s.n}), pre = guarded_tensor(dtype, {s.m, s.n});
  ops::linear_activation(ctx, d.x, d.w, d.bias, ops::Activation::kGeluTanh, pre, y);
  compare_product(result, "pre", pre, s.m, s.n, s.k, d.x64, false, d.w64, true, d.bias64.data(),
                  {});
  std::vector<double> value = doubles(pre), size(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    size[i] = std::abs(value[i]);
    value[i] = kernels::reference::activation(value[i], kernels::ActivationKind::kGeluTanh);
  }
  // Of the very numbers in `pre`; functions for bf16 results are within 2^-13 of the argument. On a
  // GPU the argument may not be rounded yet; the slope of GELU is below 1.13.
  const double function =
      (dtype == DType::kBFloat16 ? 0x1p-13 : 8 * 0x1p-24) +
      (ctx.device->kind() == DeviceKind::kCuda ? 1.13 * storage_roundoff(dtype) : 0);
  compare(result, "activated", y, value, {function + storage_roundoff(dtype), 1e-7}, size);

  check_grad_input_gelu(result, ctx, d, random, dtype, s);

  Tensor db = random_tensor(random, DType::kFloat32, {s.n});
  const std::vector<double> db_before = doubles(db);
  ops::linear_grad_bias(ctx, d.dy, db);
  const std::vector<double> ones(static_cast<size_t>(s.m), 1.0);
  compare_product(result, "db", db, 1, s.n, s.m, ones, false, d.dy64, false, nullptr, db_before);

  // Both gradients at once; db now holds what it held and the sums.
  const std::vector<double> db_now = doubles(db), dw_now = doubles(dw);
  ops::linear_grad_weight_bias(ctx, d.dy, d.x, dw, db);
  compare_product(result, "dw with db", dw, s.n, s.k, s.m, d.dy64, true, d.x64, false, nullptr,
                  dw_now);
  compare_product(result, "db with dw", db, 1, s.n, s.m, ones, false, d.dy64, false, nullptr,
                  db_now);
  return result;
}

CaseResult gradient(const OpContext& ctx, uint64_t seed, DType dtype, const Sizes& s) {
  const Data d = make_data(seed, dtype, s);
  const auto objective = [&](const std::vector<double>& x, const std::vector<double>& w,
                             const std::vector<double>& bias) {
    std::vector<double> y(d.dy64.size());
    kernels::matmul_ref({.m = s.m,
                         .n = s.n,
                         .k = s.k,
                         .a = x.data(),
                         .b = w.data(),
                         .b_transposed = true,
                         .bias = bias.data(),
                         .c = y.data()});
    return weighted_sum(d.dy64, y);
  };
  Tensor dx = guarded_tensor(dtype, {s.m, s.k});
  ops::linear_grad_input(ctx, d.dy, d.w, dx);
  Tensor dw = filled_tensor(DType::kFloat32, {s.n, s.k}, 0);
  ops::linear_grad_weight(ctx, d.dy, d.x, dw);
  Tensor db = filled_tensor(DType::kFloat32, {s.n}, 0);
  ops::linear_grad_bias(ctx, d.dy, db);
  CaseResult result;
  // 1e-6 covers the fp32 sums and the differences of a multilinear function.
  const Tolerance fp32{1e-6, 1e-8}, own{1e-6 + unit_roundoff(dtype), 1e-8};
  compare_gradient(
      result, "dx", dx, d.x64,
      [&](const std::vector<double>& x) { return objective(x, d.w64, d.bias64); }, own);
  compare_gradient(
      result, "dw", dw, d.w64,
      [&](const std::vector<double>& w) { return objective(d.x64, w, d.bias64); }, fp32);
  compare_gradient(
      result, "db", db, d.bias64,
      [&](const std::vector<double>& bias) { return objective(d.x64, d.w64, bias); }, fp32);
  return result;
}

enum class Kind { kForward, kInput, kWeight };

OpCase timed(Kind kind, DType dtype, const Sizes& s) {
  const char* const names[] = {"forward", "grad_input", "grad_weight"};
  OpCase row;
  row.name = row_name(names[static_cast<int>(kind)], dtype, s);
  const double m = static_cast<double>(s.m), n = static_cast<double>(s.n),
               k = static_cast<double>(s.k);
  const double size = static_cast<double>(dtype_size(dtype));
  row.flops = 2 * m * n * k;
  row.bytes =
      kind == Kind::kWeight ? size * (m * n + m * k) + 8 * n * k : size * (m * n + m * k + n * k);
  row.prepare = [kind, dtype, s](const OpContext& ctx) -> std::function<void()> {
    const Tensor x = bench_tensor(ctx, dtype, {s.m, s.k}), y = bench_tensor(ctx, dtype, {s.m, s.n});
    const Tensor w = bench_tensor(ctx, kind == Kind::kWeight ? DType::kFloat32 : dtype, {s.n, s.k});
    return [ctx, kind, x, y, w]() {
      Tensor out = kind == Kind::kForward ? y : kind == Kind::kInput ? x : w;
      if (kind == Kind::kForward) ops::linear(ctx, x, w, Tensor(), out);
      if (kind == Kind::kInput) ops::linear_grad_input(ctx, y, w, out);
      if (kind == Kind::kWeight) ops::linear_grad_weight(ctx, y, x, out);
    };
  };
  return row;
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    for (const Sizes& s : {Sizes{1, 1, 1}, Sizes{0, 5, 3}, Sizes{3, 5, 0}, Sizes{4, 0, 3},
                           Sizes{5, 7, 3}, Sizes{17, 33, 65}, Sizes{1, 300, 129},
                           Sizes{130, 257, 100}, Sizes{33, 1537, 64}, Sizes{600, 40, 48}}) {
      OpCase row;
      row.name = row_name("check", dtype, s);
      row.check = [dtype, s](const OpContext& ctx, uint64_t seed) {
        return check(ctx, seed, dtype, s);
      };
      if (s.m * s.n * s.k > 0 && s.m * s.n * s.k < 1000) {
        row.gradient = [dtype, s](const OpContext& ctx, uint64_t seed) {
          return gradient(ctx, seed, dtype, s);
        };
      }
      rows.push_back(std::move(row));
    }
  }
  // GPT-2 124M with 4 sequences of 256 tokens: qkv, projection, both layers of the MLP, the head.
  for (const DType dtype : kFloatTypes) {
    for (const Kind kind : {Kind::kForward, Kind::kInput, Kind::kWeight}) {
      for (const Sizes& s : {Sizes{1024, 2304, 768}, Sizes{1024, 768, 768}, Sizes{1024, 3072, 768},
                             Sizes{1024, 768, 3072}, Sizes{1024, 50304, 768}, Sizes{64, 3072, 768},
                             Sizes{1, 768, 768}}) {
        if (kind == Kind::kForward || s.m > 1) rows.push_back(timed(kind, dtype, s));
      }
    }
  }
  return rows;
}

}  // namespace ds::testing::linear_rows
