// Checks and launches of layer and RMS normalisation.
#include "ops/norm.h"

#include <cmath>

#include "kernels/norm/layer_norm.h"
#include "kernels/norm/rms_norm.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

// The width of rows; a row without elements has no mean.
int64_t row_width(const Tensor& x, const Op& op, const char* name) {
  DS_CHECK(x.dims() >= 1 && x.size(-1) >= 1, Code::kInvalidArgument, op, ": ", name, " of shape ",
           x.shape().text(), " has no elements to normalise over");
  return x.size(-1);
}

// What both normalisations take.
void check_forward(const Op& op, const Tensor& x, const Tensor& residual, const Tensor& gamma,
                   float eps, const Tensor& y, const Tensor& sum, const Tensor& rstd) {
  check_dense_float(x, op, "x");
  const DType dtype = x.dtype();
  const int64_t cols = row_width(x, op, "x"), rows = x.elements() / cols;
  if (residual) {
    check_dense(residual, op, "residual", dtype, x.shape());
    DS_CHECK(sum, Code::kInvalidArgument, op,
             ": with a residual, sum must be given to receive x + residual");
  }
  if (sum) check_dense(sum, op, "sum", dtype, x.shape());
  check_dense(y, op, "y", dtype, x.shape());
  check_elements(gamma, op, "gamma", dtype, cols);
  check_elements(rstd, op, "rstd", DType::kFloat32, rows);
  DS_CHECK(eps >= 0 && std::isfinite(eps), Code::kInvalidArgument, op,
           ": eps must be finite and not negative, not ", eps);
}

void check_backward(const Op& op, const Tensor& dy, const Tensor& dsum, const Tensor& sum,
                    const Tensor& gamma, const Tensor& rstd, const Tensor& dx,
                    const Tensor& dgamma) {
  check_dense_float(dy, op, "dy");
  const DType dtype = dy.dtype();
  const int64_t cols = row_width(dy, op, "dy"), rows = dy.elements() / cols;
  if (dsum) check_dense(dsum, op, "dsum", dtype, dy.shape());
  check_dense(sum, op, "sum", dtype, dy.shape());
  check_dense(dx, op, "dx", dtype, dy.shape());
  check_elements(gamma, op, "gamma", dtype, cols);
  check_elements(rstd, op, "rstd", DType::kFloat32, rows);
  check_elements(dgamma, op, "dgamma", DType::kFloat32, cols);
}

}  // namespace

void layer_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& gamma,
                const Tensor& beta, float eps, Tensor& y, Tensor& sum, Tensor& mean, Tensor& rstd) {
  const Op op{ctx, "layer_norm"};
  check_forward(op, x, residual, gamma, eps, y, sum, rstd);
  const DType dtype = x.dtype();
  const int64_t cols = x.size(-1), rows = x.elements() / cols;
  check_elements(beta, op, "beta", dtype, cols);
  check_elements(mean, op, "mean", DType::kFloat32, rows);
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::LayerNorm<T> call;
    call.rows = rows;
    call.cols = cols;
    call.x = x.data<T>();
    call.residual = residual ? residual.data<T>() : nullptr;
    call.gamma = gamma.data<T>();
    call.beta = beta.data<T>();
    call.eps = eps;
    call.y = y.data<T>();
    call.sum = sum ? sum.data<T>() : nullptr;
    call.mean = mean.data<float>();
    call.rstd = rstd.data<float>();
    run(ctx, [&](auto& on) { kernels::layer_norm(call, on); });
  });
}

void layer_norm_backward(const OpContext& ctx, const Tensor& dy, const Tensor& dsum,
                         const Tensor& sum, const Tensor& gamma, const Tensor& mean,
                         const Tensor& rstd, Tensor& dx, Tensor& dgamma, Tensor& dbeta) {
  const Op op{ctx, "layer_norm_backward"};
  check_backward(op, dy, dsum, sum, gamma, rstd, dx, dgamma);
  const int64_t cols = dy.size(-1), rows = dy.elements() / cols;
  check_elements(mean, op, "mean", DType::kFloat32, rows);
  check_elements(dbeta, op, "dbeta", DType::kFloat32, cols);
  with_float_type(dy, [&](auto type) {
    using T = decltype(type);
    kernels::LayerNormBackward<T> call;
    call.rows = rows;
    call.cols = cols;
    call.dy = dy.data<T>();
    call.dsum = dsum ? dsum.data<T>() : nullptr;
    call.sum = sum.data<T>();
    call.gamma = gamma.data<T>();
    call.mean = mean.data<float>();
    call.rstd = rstd.data<float>();
    call.dx = dx.data<T>();
    call.dgamma = dgamma.data<float>();
    call.dbeta = dbeta.data<float>();
    run(ctx, [&](auto& on) {
      const Tensor scratch =
          ctx.workspace(DType::kFloat32, {kernels::layer_norm_partials(rows, cols, on)});
      call.partials = scratch.data<float>();
      kernels::layer_norm_backward(call, on);
    });
  });
}

void rms_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& gamma,
              float eps, Tensor& y, Tensor& sum, Tensor& rstd) {
  check_forward(Op{ctx, "rms_norm"}, x, residual, gamma, eps, y, sum, rstd);
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::RmsNorm<T> call;
    call.cols = x.size(-1);
    call.rows = x.elements() / call.cols;
    call.x = x.data<T>();
    call.residual = residual ? residual.data<T>() : nullptr;
    call.gamma = gamma.data<T>();
    call.eps = eps;
    call.y = y.data<T>();
    call.sum = sum ? sum.data<T>() : nullptr;
    call.rstd = rstd.data<float>();
    run(ctx, [&](auto& on) { kernels::rms_norm(call, on); });
  });
}

void rms_norm_backward(const OpContext& ctx, const Tensor& dy, const Tensor& dsum,
                       const Tensor& sum, const Tensor& gamma, const Tensor& rstd, Tensor& dx,
                       Tensor& dgamma) {
  check_backward(Op{ctx, "rms_norm_backward"}, dy, dsum, sum, gamma, rstd, dx, dgamma);
  const int64_t cols = dy.size(-1), rows = dy.elements() / cols;
  with_float_type(dy, [&](auto type) {
    using T = decltype(type);
    kernels::RmsNormBackward<T> call;
    call.rows = rows;
    call.cols = cols;
    call.dy = dy.data<T>();
    call.dsum = dsum ? dsum.data<T>() : nullptr;
    call.sum = sum.data<T>();
    call.gamma = gamma.data<T>();
    call.rstd = rstd.data<float>();
    call.dx = dx.data<T>();
    call.dgamma = dgamma.data<float>();
    run(ctx, [&](auto& on) {
      const Tensor scratch =
          ctx.workspace(DType::kFloat32, {kernels::rms_norm_partials(rows, cols, on)});
      call.partials = scratch.data<float>();
      kernels::rms_norm_backward(call, on);
    });
  });
}

}  // namespace ds::ops
