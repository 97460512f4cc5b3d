// Rows for RMS normalisation with residual.
#include <algorithm>

#include "kernels/case_util.h"
#include "kernels/norm/norm.h"
#include "kernels/norm_rows.h"
#include "ops/norm.h"

namespace ds::testing::rms_norm_rows {
namespace {

namespace ref = kernels::reference;

// Everything a call reads and writes.
struct Norm {
  Tensor x, residual, gamma, y, sum, rstd;
  float eps = 1e-6f;

  Norm(Random& random, DType dtype, int64_t rows, int64_t cols, bool with_residual) {
    x = random_tensor(random, dtype, {rows, cols}, 1.5, 0.5);
    if (with_residual) residual = random_tensor(random, dtype, {rows, cols}, 1, -0.25);
    gamma = random_tensor(random, dtype, {cols}, 0.5, 1);
    y = guarded_tensor(dtype, {rows, cols});
    sum = guarded_tensor(dtype, {rows, cols});
    rstd = guarded_tensor(DType::kFloat32, {rows});
  }
  ops::NormInputs inputs() const {
    return {.x = x, .residual = residual, .gamma = gamma, .eps = eps};
  }
  ops::NormOutputs outputs() const { return {.y = y, .sum = sum, .rstd = rstd}; }
  ops::NormBackwardInputs backward_inputs(const Tensor& dy, const Tensor& dsum) const {
    return {.dy = dy, .dsum = dsum, .sum = sum, .gamma = gamma, .rstd = rstd};
  }
  void forward(const OpContext& ctx) const { ops::rms_norm(ctx, inputs(), outputs()); }
};

// In the middle.
void put_nan(const Tensor& tensor) {
  std::vector<double> values = doubles(tensor);
  values[values.size() / 2] = std::nan("");
  set_doubles(tensor, values);
}

void check_forward(CaseResult& result, const OpContext& ctx, Norm& norm) {
  const DType dtype = norm.x.dtype();
  const int64_t rows = norm.x.size(0), cols = norm.x.size(1);
  norm.forward(ctx);
  std::vector<double> s = doubles(norm.x);
  const std::vector<double> residual = doubles(norm.residual), gamma = doubles(norm.gamma);
  for (size_t i = 0; i < residual.size(); ++i) s[i] += residual[i];
  compare(result, "sum", norm.sum, s, {norm.residual ? unit_roundoff(dtype) + 0x1p-23 : 0.0, 0});

  // From here on the reference starts from the rounded sum.
  s = doubles(norm.sum);
  std::vector<double> y(s.size()), sum(s.size()), rstd(static_cast<size_t>(rows));
  ref::rms_norm({.rows = rows,
                 .cols = cols,
                 .x = s.data(),
                 .gamma = gamma.data(),
                 .eps = norm.eps,
                 .y = y.data(),
                 .sum = sum.data(),
                 .rstd = rstd.data()});
  // Squares are positive, so nothing cancels: sums in at least sixteen chains and a few more
  // roundings, relative to the result.
  const double fp32 = 0x1p-24 * (8 + static_cast<double>(cols) / 16);
  compare(result, "rstd", norm.rstd, rstd, {fp32, 0});
  compare(result, "y", norm.y, y, {fp32 + storage_roundoff(dtype), 0});
}

// What dx takes the place of.
enum class Over { kNothing, kDy, kDsum };

void check_backward(CaseResult& result, const OpContext& ctx, const Norm& norm, Random& random,
                    bool with_dsum, Over over, bool broken = false) {
  const DType dtype = norm.x.dtype();
  const int64_t rows = norm.x.size(0), cols = norm.x.size(1);
  const Shape shape{rows, cols};
  const Tensor dy = random_tensor(random, dtype, shape);
  if (broken) put_nan(dy);
  const Tensor dsum = with_dsum ? random_tensor(random, dtype, shape) : Tensor();
  Tensor dgamma = random_tensor(random, DType::kFloat32, {cols});
  const std::vector<double> dyv = doubles(dy), ds = doubles(dsum), s = doubles(norm.sum),
                            gamma = doubles(norm.gamma), rstd = doubles(norm.rstd);
  std::vector<double> dx(s.size()), dgamma_v = doubles(dgamma), gamma_scale(dgamma_v), dx_scale(dx);
  for (double& v : gamma_scale) v = std::abs(v);
  ref::rms_norm_backward({.rows = rows,
                          .cols = cols,
                          .dy = dyv.data(),
                          .dsum = with_dsum ? ds.data() : nullptr,
                          .sum = s.data(),
                          .gamma = gamma.data(),
                          .rstd = rstd.data(),
                          .dx = dx.data(),
                          .dgamma = dgamma_v.data()});
  const double fp32 = 0x1p-24 * (16 + static_cast<double>(cols) / 16);
  for (size_t row = 0; row < rstd.size(); ++row) {
    const size_t at = row * gamma.size();
    double gx_mean = 0;
    for (size_t j = 0; j < gamma.size(); ++j) {
      const double xhat = std::abs(s[at + j] * rstd[row]);
      gx_mean += std::abs(dyv[at + j] * gamma[j]) * xhat / static_cast<double>(cols);
      gamma_scale[j] += std::abs(dyv[at + j]) * xhat;
    }
    for (size_t j = 0; j < gamma.size(); ++j) {
      const double xhat = std::abs(s[at + j] * rstd[row]);
      const double terms = rstd[row] * (std::abs(dyv[at + j] * gamma[j]) + xhat * gx_mean) +
                           (with_dsum ? std::abs(ds[at + j]) : 0);
      dx_scale[at + j] = fp32 * terms + storage_roundoff(dtype) * std::abs(dx[at + j]);
    }
  }
  Tensor out = over == Over::kNothing ? guarded_tensor(dtype, shape)
                                      : copy_of(over == Over::kDy ? dy : dsum);
  ops::rms_norm_backward(
      ctx, norm.backward_inputs(over == Over::kDy ? out : dy, over == Over::kDsum ? out : dsum),
      {.dx = out, .dgamma = dgamma});
  const char* const names[] = {"dx", "dx over dy", "dx over dsum"};
  compare(result, names[static_cast<int>(over)], out, dx, {1, 0}, dx_scale);
  // One chain per chunk of rows, then the chunks; xhat itself has a few roundings.
  const auto chain = static_cast<double>(std::min(kernels::row_chunk_size(rows), rows) +
                                         kernels::row_chunks(rows) + 6);
  compare(result, "dgamma", dgamma, dgamma_v, {0x1p-24 * chain, 0}, gamma_scale);
}

CaseResult gradient(const OpContext& ctx, uint64_t seed, int64_t rows, int64_t cols,
                    bool with_residual) {
  constexpr DType kType = DType::kFloat32;
  Random random(seed);
  CaseResult result;
  Norm norm(random, kType, rows, cols, with_residual);
  norm.forward(ctx);
  const Tensor dy = random_tensor(random, kType, {rows, cols});
  const Tensor dsum = random_tensor(random, kType, {rows, cols});
  Tensor dx = guarded_tensor(kType, {rows, cols}), dgamma = filled_tensor(kType, {cols}, 0);
  ops::rms_norm_backward(ctx, norm.backward_inputs(dy, dsum), {.dx = dx, .dgamma = dgamma});
  const std::vector<double> wy = doubles(dy), ws = doubles(dsum), x = doubles(norm.x),
                            r = doubles(norm.residual), gamma = doubles(norm.gamma);
  const auto objective = [&](const std::vector<double>& xs, const std::vector<double>& rs,
                             const std::vector<double>& g) {
    std::vector<double> y(xs.size()), s(xs.size()), q(static_cast<size_t>(rows));
    ref::rms_norm({.rows = rows,
                   .cols = cols,
                   .x = xs.data(),
                   .residual = rs.empty() ? nullptr : rs.data(),
                   .gamma = g.data(),
                   .eps = norm.eps,
                   .y = y.data(),
                   .sum = s.data(),
                   .rstd = q.data()});
    return weighted_sum(wy, y) + weighted_sum(ws, s);
  };
  // A few dozen fp32 roundings of the largest gradient. Rows of small elements have a large rstd,
  // which scales the terms that cancel (and the square of the differences' step).
  double narrow = 0;
  for (const double q : doubles(norm.rstd)) {
    narrow = std::max(narrow, 1e-6 * q + 1e-10 * q * q * q);
  }
  double largest = 0;
  for (size_t i = 0; i < wy.size(); ++i) {
    largest = std::max(largest, std::abs(wy[i] * gamma[i % gamma.size()]));
  }
  const Tolerance tolerance{3e-6, narrow * largest * static_cast<double>(cols)};
  compare_gradient(
      result, "dx", dx, x, [&](const auto& v) { return objective(v, r, gamma); }, tolerance);
  if (with_residual) {
    compare_gradient(
        result, "dresidual", dx, r, [&](const auto& v) { return objective(x, v, gamma); },
        tolerance);
  }
  compare_gradient(
      result, "dgamma", dgamma, gamma, [&](const auto& v) { return objective(x, r, v); },
      tolerance);
  return result;
}

OpCase norm_case(DType dtype, int64_t rows, int64_t cols, bool with_residual) {
  OpCase row;
  row.name = str_cat("rms_norm/", type_name(dtype), "/", rows, "x", cols,
                     with_residual ? "/residual" : "");
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    Norm norm(random, dtype, rows, cols, with_residual);
    check_forward(result, ctx, norm);
    check_backward(result, ctx, norm, random, with_residual, Over::kNothing);
    check_backward(result, ctx, norm, random, !with_residual, Over::kDy);
    if (with_residual) check_backward(result, ctx, norm, random, true, Over::kDsum);
    if (!with_residual) {  // sum may be left out, or be x itself
      const std::vector<double> y = doubles(norm.y);
      ops::rms_norm(ctx, norm.inputs(), {.y = norm.y, .rstd = norm.rstd});
      compare(result, "y without sum", norm.y, y, {});
      ops::rms_norm(ctx, norm.inputs(), {.y = norm.y, .sum = norm.x, .rstd = norm.rstd});
      compare(result, "y with sum = x", norm.y, y, {});
    }
    return result;
  };
  if (dtype == DType::kFloat32 && rows * cols > 1 && rows * cols <= 200) {
    row.gradient = [=](const OpContext& ctx, uint64_t seed) {
      return gradient(ctx, seed, rows, cols, with_residual);
    };
  }
  return row;
}

// A NaN shows in its row's results, and in the sums of its column: nowhere else, nor is it lost.
OpCase nan_case(DType dtype, int64_t rows, int64_t cols) {
  OpCase row;
  row.name = str_cat("rms_norm/nan/", type_name(dtype), "/", rows, "x", cols);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    Norm norm(random, dtype, rows, cols, true);
    norm.forward(ctx);
    check_backward(result, ctx, norm, random, true, Over::kNothing, true);
    check_backward(result, ctx, norm, random, true, Over::kDy, true);
    put_nan(norm.x);
    check_forward(result, ctx, norm);
    check_backward(result, ctx, norm, random, false, Over::kNothing);
    return result;
  };
  return row;
}

std::vector<OpCase> bench_cases(DType dtype, int64_t rows, int64_t cols) {
  const Shape shape{rows, cols};
  const auto elements = static_cast<double>(shape.elements() * dtype_size(dtype));
  const std::string size = str_cat(type_name(dtype), "/", rows, "x", cols);
  OpCase forward, backward;
  forward.name = "rms_norm_residual/" + size;
  forward.bytes = 4 * elements;
  backward.name = "rms_norm_backward/" + size;
  backward.bytes = 3 * elements;
  const auto prepare = [=](bool back) {
    return [=](const OpContext& ctx) -> std::function<void()> {
      const Tensor x = bench_tensor(ctx, dtype, shape), residual = bench_tensor(ctx, dtype, shape);
      const Tensor gamma = bench_tensor(ctx, dtype, {cols});
      Tensor y = bench_tensor(ctx, dtype, shape), sum = bench_tensor(ctx, dtype, shape);
      Tensor rstd = bench_tensor(ctx, DType::kFloat32, {rows});
      Tensor dgamma = bench_tensor(ctx, DType::kFloat32, {cols});
      return [=] {
        if (back) {
          ops::rms_norm_backward(ctx, {.dy = x, .sum = residual, .gamma = gamma, .rstd = rstd},
                                 {.dx = y, .dgamma = dgamma});
        } else {
          ops::rms_norm(ctx, {.x = x, .residual = residual, .gamma = gamma, .eps = 1e-6f},
                        {.y = y, .sum = sum, .rstd = rstd});
        }
      };
    };
  };
  forward.prepare = prepare(false);
  backward.prepare = prepare(true);
  return {forward, backward};
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    add_norm_rows(dtype, norm_case, nan_case, rows);
    for (OpCase& row : bench_cases(dtype, 4096, 768)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace ds::testing::rms_norm_rows
