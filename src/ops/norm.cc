// Checks and launches of layer and RMS normalisation.
#include "ops/norm.h"

#include <cmath>

#include "kernels/norm/norm.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

// The width of rows; a row without elements has no mean.
int64_t row_width(const Tensor& x, const Op& op, const char* name) {
  DS_CHECK(x.dims() >= 1 && x.size(-1) >= 1, Code::kInvalidArgument, op, ": ", name, " of shape ",
           x.shape().text(), " has no elements to normalise over");
  return x.size(-1);
}

struct NormOutputs {
  const Tensor &y, &sum;
  const Tensor mean;
  const Tensor& rstd;
};

// What both normalisations take.
void check_forward(const Op& op, const Tensor& x, const Tensor& residual, const Tensor& gamma,
                   float eps, const NormOutputs& out) {
  check_dense_float(x, op, "x");
  const DType dtype = x.dtype();
  const int64_t cols = row_width(x, op, "x"), rows = x.elements() / cols;
  if (residual) {
    check_dense(residual, op, "residual", dtype, x.shape());
    DS_CHECK(out.sum, Code::kInvalidArgument, op,
             ": with a residual, sum must be given to receive x + residual");
  }
  if (out.sum) check_dense(out.sum, op, "sum", dtype, x.shape());
  check_dense(out.y, op, "y", dtype, x.shape());
  check_elements(gamma, op, "gamma", dtype, cols);
  check_elements(out.rstd, op, "rstd", DType::kFloat32, rows);
  DS_CHECK(eps >= 0 && std::isfinite(eps), Code::kInvalidArgument, op,
           ": eps must be finite and not negative, not ", eps);
}

struct NormInputs {
  const Tensor &dy, &dsum, &sum, &gamma;
  const Tensor mean;
  const Tensor& rstd;
};

void check_backward(const Op& op, const NormInputs& in, const Tensor& dx, const Tensor& dgamma) {
  check_dense_float(in.dy, op, "dy");
  const DType dtype = in.dy.dtype();
  const int64_t cols = row_width(in.dy, op, "dy"), rows = in.dy.elements() / cols;
  if (in.dsum) check_dense(in.dsum, op, "dsum", dtype, in.dy.shape());
  check_dense(in.sum, op, "sum", dtype, in.dy.shape());
  check_dense(dx, op, "dx", dtype, in.dy.shape());
  check_elements(in.gamma, op, "gamma", dtype, cols);
  check_elements(in.rstd, op, "rstd", DType::kFloat32, rows);
  check_elements(dgamma, op, "dgamma", DType::kFloat32, cols);
}

template <class T>
T* data_of(const Tensor& tensor) {
  return tensor ? tensor.data<T>() : nullptr;
}

// What only layer normalisation has is empty for RMS normalisation.
template <bool kCentred>
void forward(const Op& op, const Tensor& x, const Tensor& residual, const Tensor& gamma,
             const Tensor& beta, float eps, const NormOutputs& out) {
  check_forward(op, x, residual, gamma, eps, out);
  const int64_t cols = x.size(-1), rows = x.elements() / cols;
  if constexpr (kCentred) {
    check_elements(beta, op, "beta", x.dtype(), cols);
    check_elements(out.mean, op, "mean", DType::kFloat32, rows);
  }
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::Norm<T, kCentred> call;
    call.rows = rows;
    call.cols = cols;
    call.x = x.data<T>();
    call.residual = data_of<T>(residual);
    call.gamma = gamma.data<T>();
    call.beta = data_of<T>(beta);
    call.eps = eps;
    call.y = out.y.data<T>();
    call.sum = data_of<T>(out.sum);
    call.mean = data_of<float>(out.mean);
    call.rstd = out.rstd.data<float>();
    run(op.ctx, [&](auto& on) { kernels::norm_forward(call, on); });
  });
}

template <bool kCentred>
void backward(const Op& op, const NormInputs& in, const Tensor& dx, const Tensor& dgamma,
              const Tensor& dbeta) {
  check_backward(op, in, dx, dgamma);
  const int64_t cols = in.dy.size(-1), rows = in.dy.elements() / cols;
  if constexpr (kCentred) {
    check_elements(in.mean, op, "mean", DType::kFloat32, rows);
    check_elements(dbeta, op, "dbeta", DType::kFloat32, cols);
  }
  with_float_type(in.dy, [&](auto type) {
    using T = decltype(type);
    kernels::NormBackward<T, kCentred> call;
    call.rows = rows;
    call.cols = cols;
    call.dy = in.dy.data<T>();
    call.dsum = data_of<T>(in.dsum);
    call.sum = in.sum.data<T>();
    call.gamma = in.gamma.data<T>();
    call.mean = data_of<float>(in.mean);
    call.rstd = in.rstd.data<float>();
    call.dx = dx.data<T>();
    call.dgamma = dgamma.data<float>();
    call.dbeta = data_of<float>(dbeta);
    run(
        op.ctx, [&](auto& on) { return kernels::norm_partials(call, on); },
        [&](float* scratch, auto& on) {
          call.partials = scratch;
          kernels::norm_backward(call, on);
        });
  });
}

}  // namespace

void layer_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& gamma,
                const Tensor& beta, float eps, Tensor& y, Tensor& sum, Tensor& mean, Tensor& rstd) {
  forward<true>({ctx, "layer_norm"}, x, residual, gamma, beta, eps, {y, sum, mean, rstd});
}

void layer_norm_backward(const OpContext& ctx, const Tensor& dy, const Tensor& dsum,
                         const Tensor& sum, const Tensor& gamma, const Tensor& mean,
                         const Tensor& rstd, Tensor& dx, Tensor& dgamma, Tensor& dbeta) {
  backward<true>({ctx, "layer_norm_backward"}, {dy, dsum, sum, gamma, mean, rstd}, dx, dgamma,
                 dbeta);
}

void rms_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& gamma,
              float eps, Tensor& y, Tensor& sum, Tensor& rstd) {
  forward<false>({ctx, "rms_norm"}, x, residual, gamma, {}, eps, {y, sum, {}, rstd});
}

void rms_norm_backward(const OpContext& ctx, const Tensor& dy, const Tensor& dsum,
                       const Tensor& sum, const Tensor& gamma, const Tensor& rstd, Tensor& dx,
                       Tensor& dgamma) {
  backward<false>({ctx, "rms_norm_backward"}, {dy, dsum, sum, gamma, {}, rstd}, dx, dgamma, {});
}

}  // namespace ds::ops
