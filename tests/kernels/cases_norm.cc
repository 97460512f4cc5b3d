// Rows for layer normalisation with residual.
#include <algorithm>

#include "kernels/case_util.h"
#include "kernels/norm/norm.h"
#include "kernels/norm_rows.h"
#include "ops/norm.h"

namespace ds::testing::norm_rows {
namespace {

namespace ref = kernels::reference;

// Everything a call reads and writes.
struct Norm {
  Tensor x, residual, gamma, beta, y, sum, mean, rstd;
  float eps = 1e-5f;

  Norm(Random& random, DType dtype, int64_t rows, int64_t cols, bool with_residual) {
    x = random_tensor(random, dtype, {rows, cols}, 1.5, 0.5);
    if (with_residual) residual = random_tensor(random, dtype, {rows, cols}, 1, -0.25);
    gamma = random_tensor(random, dtype, {cols}, 0.5, 1);
    beta = random_tensor(random, dtype, {cols}, 0.5);
    y = guarded_tensor(dtype, {rows, cols});
    sum = guarded_tensor(dtype, {rows, cols});
    mean = guarded_tensor(DType::kFloat32, {rows});
    rstd = guarded_tensor(DType::kFloat32, {rows});
  }
  ops::NormInputs inputs() const {
    return {.x = x, .residual = residual, .gamma = gamma, .beta = beta, .eps = eps};
  }
  ops::NormOutputs outputs() const { return {.y = y, .sum = sum, .mean = mean, .rstd = rstd}; }
  ops::NormBackwardInputs backward_inputs(const Tensor& dy, const Tensor& dsum) const {
    return {.dy = dy, .dsum = dsum, .sum = sum, .gamma = gamma, .mean = mean, .rstd = rstd};
  }
  void forward(const OpContext& ctx) const { ops::layer_norm(ctx, inputs(), outputs()); }
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
  const double u = unit_roundoff(dtype);
  norm.forward(ctx);
  const std::vector<double> x = doubles(norm.x), residual = doubles(norm.residual);
  std::vector<double> s = x;
  if (norm.residual) {
    for (size_t i = 0; i < s.size(); ++i) s[i] += residual[i];
  }
  compare(result, "sum", norm.sum, s, {norm.residual ? u + 0x1p-23 : 0.0, 0});

  // From here on the reference starts from the rounded sum.
  s = doubles(norm.sum);
  const std::vector<double> gamma = doubles(norm.gamma), beta = doubles(norm.beta);
  std::vector<double> y(s.size()), sum(s.size()), mean(static_cast<size_t>(rows)), rstd(mean);
  ref::layer_norm({.rows = rows,
                   .cols = cols,
                   .x = s.data(),
                   .gamma = gamma.data(),
                   .beta = beta.data(),
                   .eps = norm.eps,
                   .y = y.data(),
                   .sum = sum.data(),
                   .mean = mean.data(),
                   .rstd = rstd.data()});
  // Errors count against the largest element in units of the deviation: that is what subtracting
  // the mean and summing squares amplify.
  std::vector<double> mean_scale(mean), rstd_scale(mean), y_scale(y);
  for (size_t row = 0; row < mean.size(); ++row) {
    double most = 0;
    for (int64_t j = 0; j < cols; ++j) {
      most = std::max(most, std::abs(s[row * static_cast<size_t>(cols) + static_cast<size_t>(j)]));
    }
    mean_scale[row] = most;
    rstd_scale[row] = rstd[row] * (1 + most * rstd[row]);
    for (size_t j = 0; j < static_cast<size_t>(cols); ++j) {
      const size_t i = row * static_cast<size_t>(cols) + j;
      const double xhat = (s[i] - mean[row]) * rstd[row];
      y_scale[i] =
          std::abs(gamma[j]) * (1 + std::abs(xhat)) * (1 + most * rstd[row]) + std::abs(beta[j]);
    }
  }
  // Sums run in at least eight chains, whose errors are of either sign.
  const double fp32 = 0x1p-24 * (8 + static_cast<double>(cols) / 16);
  compare(result, "mean", norm.mean, mean, {fp32, 0}, mean_scale);
  compare(result, "rstd", norm.rstd, rstd, {fp32, 0}, rstd_scale);
  for (size_t i = 0; i < y.size(); ++i) y_scale[i] = fp32 * y_scale[i] + u * std::abs(y[i]);
  compare(result, "y", norm.y, y, {1, 0}, y_scale);
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
  Tensor dbeta = random_tensor(random, DType::kFloat32, {cols});
  const std::vector<double> dyv = doubles(dy), ds = doubles(dsum), s = doubles(norm.sum),
                            gamma = doubles(norm.gamma), mean = doubles(norm.mean),
                            rstd = doubles(norm.rstd);
  std::vector<double> dx(s.size()), dgamma_v = doubles(dgamma), dbeta_v = doubles(dbeta);
  std::vector<double> gamma_scale(dgamma_v), beta_scale(dbeta_v), dx_scale(dx);
  for (double& v : gamma_scale) v = std::abs(v);
  for (double& v : beta_scale) v = std::abs(v);
  const double fp32 = 0x1p-24 * (16 + static_cast<double>(cols) / 16), u = unit_roundoff(dtype);
  for (size_t row = 0; row < mean.size(); ++row) {
    const size_t at = row * static_cast<size_t>(cols);
    double g_mean = 0, gx_mean = 0;
    for (size_t j = 0; j < gamma.size(); ++j) {
      const double xhat = (s[at + j] - mean[row]) * rstd[row];
      const double g = dyv[at + j] * gamma[j];
      g_mean += std::abs(g) / static_cast<double>(cols);
      gx_mean += std::abs(g * xhat) / static_cast<double>(cols);
      gamma_scale[j] += std::abs(dyv[at + j] * xhat);
      beta_scale[j] += std::abs(dyv[at + j]);
      dx_scale[at + j] = std::abs(g);
    }
    for (size_t j = 0; j < gamma.size(); ++j) {
      const double xhat = (s[at + j] - mean[row]) * rstd[row];
      dx_scale[at + j] = rstd[row] * (dx_scale[at + j] + g_mean + (1 + std::abs(xhat)) * gx_mean);
    }
  }
  ref::layer_norm_backward({.rows = rows,
                            .cols = cols,
                            .dy = dyv.data(),
                            .dsum = with_dsum ? ds.data() : nullptr,
                            .sum = s.data(),
                            .gamma = gamma.data(),
                            .mean = mean.data(),
                            .rstd = rstd.data(),
                            .dx = dx.data(),
                            .dgamma = dgamma_v.data(),
                            .dbeta = dbeta_v.data()});
  for (size_t i = 0; i < dx.size(); ++i) {
    dx_scale[i] = fp32 * (dx_scale[i] + (with_dsum ? std::abs(ds[i]) : 0)) + u * std::abs(dx[i]);
  }
  Tensor out = over == Over::kNothing ? guarded_tensor(dtype, shape)
                                      : copy_of(over == Over::kDy ? dy : dsum);
  ops::layer_norm_backward(
      ctx, norm.backward_inputs(over == Over::kDy ? out : dy, over == Over::kDsum ? out : dsum),
      {.dx = out, .dgamma = dgamma, .dbeta = dbeta});
  const char* const names[] = {"dx", "dx over dy", "dx over dsum"};
  compare(result, names[static_cast<int>(over)], out, dx, {1, 0}, dx_scale);
  // One chain per chunk of rows, then the chunks; xhat itself has a few roundings.
  const auto chain = static_cast<double>(std::min(kernels::row_chunk_size(rows), rows) +
                                         kernels::row_chunks(rows) + 6);
  compare(result, "dgamma", dgamma, dgamma_v, {0x1p-24 * chain, 1e-7}, gamma_scale);
  compare(result, "dbeta", dbeta, dbeta_v, {0x1p-24 * chain, 0}, beta_scale);
}

OpCase norm_case(DType dtype, int64_t rows, int64_t cols, bool with_residual) {
  OpCase row;
  row.name = str_cat("layer_norm/", type_name(dtype), "/", rows, "x", cols,
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
      ops::layer_norm(ctx, norm.inputs(), {.y = norm.y, .mean = norm.mean, .rstd = norm.rstd});
      compare(result, "y without sum", norm.y, y, {});
      ops::layer_norm(ctx, norm.inputs(),
                      {.y = norm.y, .sum = norm.x, .mean = norm.mean, .rstd = norm.rstd});
      compare(result, "y with sum = x", norm.y, y, {});
    }
    return result;
  };
  if (dtype == DType::kFloat32 && rows * cols > 1 && rows * cols <= 200) {
    row.gradient = [=](const OpContext& ctx, uint64_t seed) {
      Random random(seed);
      CaseResult result;
      Norm norm(random, dtype, rows, cols, with_residual);
      norm.forward(ctx);
      const Tensor dy = random_tensor(random, dtype, {rows, cols});
      const Tensor dsum = random_tensor(random, dtype, {rows, cols});
      Tensor dx = guarded_tensor(dtype, {rows, cols});
      Tensor dgamma = filled_tensor(dtype, {cols}, 0), dbeta = filled_tensor(dtype, {cols}, 0);
      ops::layer_norm_backward(ctx, norm.backward_inputs(dy, dsum),
                               {.dx = dx, .dgamma = dgamma, .dbeta = dbeta});
      const std::vector<double> wy = doubles(dy), ws = doubles(dsum);
      const std::vector<double> x = doubles(norm.x), r = doubles(norm.residual),
                                gamma = doubles(norm.gamma), beta = doubles(norm.beta);
      const auto objective = [&](const std::vector<double>& xs, const std::vector<double>& rs,
                                 const std::vector<double>& g, const std::vector<double>& b) {
        std::vector<double> y(xs.size()), s(xs.size()), m(static_cast<size_t>(rows)), q(m);
        ref::layer_norm({.rows = rows,
                         .cols = cols,
                         .x = xs.data(),
                         .residual = rs.empty() ? nullptr : rs.data(),
                         .gamma = g.data(),
                         .beta = b.data(),
                         .eps = norm.eps,
                         .y = y.data(),
                         .sum = s.data(),
                         .mean = m.data(),
                         .rstd = q.data()});
        return weighted_sum(wy, y) + weighted_sum(ws, s);
      };
      // A few dozen fp32 roundings of the largest gradient; of rows whose elements lie close
      // together, what subtracting the mean amplifies, in the operator (2^-24 |s| rstd) and in the
      // differences (the square of their step in units of the deviation).
      double largest = 0, narrow = 0;
      for (size_t i = 0; i < wy.size(); ++i) {
        largest = std::max(largest, std::abs(wy[i] * gamma[i % gamma.size()]));
      }
      const std::vector<double> s = doubles(norm.sum), rstd = doubles(norm.rstd);
      for (size_t i = 0; i < s.size(); ++i) {
        const double q = rstd[i / gamma.size()], ratio = (1 + std::abs(s[i])) * q;
        narrow = std::max(narrow, (1 + q) * (5e-7 * ratio + 1e-10 * ratio * ratio));
      }
      const Tolerance tolerance{3e-6, narrow * largest};
      compare_gradient(
          result, "dx", dx, x, [&](const auto& v) { return objective(v, r, gamma, beta); },
          tolerance);
      if (with_residual) {
        compare_gradient(
            result, "dresidual", dx, r, [&](const auto& v) { return objective(x, v, gamma, beta); },
            tolerance);
      }
      compare_gradient(
          result, "dgamma", dgamma, gamma, [&](const auto& v) { return objective(x, r, v, beta); },
          tolerance);
      compare_gradient(
          result, "dbeta", dbeta, beta, [&](const auto& v) { return objective(x, r, gamma, v); },
          tolerance);
      return result;
    };
  }
  return row;
}

// A NaN shows in its row's results, and in the sums of its column: nowhere else, nor is it lost.
OpCase nan_case(DType dtype, int64_t rows, int64_t cols) {
  OpCase row;
  row.name = str_cat("layer_norm/nan/", type_name(dtype), "/", rows, "x", cols);
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
  OpCase forward, with_residual, backward;
  forward.name = "layer_norm/" + size;
  forward.bytes = 2 * elements;
  with_residual.name = "layer_norm_residual/" + size;
  with_residual.bytes = 4 * elements;
  backward.name = "layer_norm_backward/" + size;
  backward.bytes = 3 * elements;
  const auto prepare = [=](int which) {
    return [=](const OpContext& ctx) -> std::function<void()> {
      const Tensor x = bench_tensor(ctx, dtype, shape);
      const Tensor residual = bench_tensor(ctx, dtype, shape);
      const Tensor gamma = bench_tensor(ctx, dtype, {cols}), beta = gamma;
      const Tensor y = bench_tensor(ctx, dtype, shape), sum = bench_tensor(ctx, dtype, shape);
      const Tensor mean = bench_tensor(ctx, DType::kFloat32, {rows}), rstd = mean;
      const Tensor dgamma = bench_tensor(ctx, DType::kFloat32, {cols}), dbeta = dgamma;
      const ops::NormInputs in{.x = x,
                               .residual = which == 0 ? Tensor() : residual,
                               .gamma = gamma,
                               .beta = beta,
                               .eps = 1e-5f};
      const ops::NormOutputs out{
          .y = y, .sum = which == 0 ? Tensor() : sum, .mean = mean, .rstd = rstd};
      const ops::NormBackwardInputs back{
          .dy = x, .sum = residual, .gamma = gamma, .mean = mean, .rstd = rstd};
      const ops::NormGradients gradients{.dx = y, .dgamma = dgamma, .dbeta = dbeta};
      return [=] {
        which == 2 ? ops::layer_norm_backward(ctx, back, gradients) : ops::layer_norm(ctx, in, out);
      };
    };
  };
  forward.prepare = prepare(0);
  with_residual.prepare = prepare(1);
  backward.prepare = prepare(2);
  return {forward, with_residual, backward};
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    add_norm_rows(dtype, norm_case, nan_case, rows);
    for (const int64_t r : {512, 4096}) {
      for (OpCase& row : bench_cases(dtype, r, 768)) rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace ds::testing::norm_rows
