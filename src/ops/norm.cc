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

// What layer normalisation needs and RMS normalisation does not have.
template <bool kCentred>
void check_centred(const Tensor& tensor, const Op& op, const char* name, DType dtype,
                   int64_t elements) {
  if constexpr (kCentred) {
    check_elements(tensor, op, name, dtype, elements);
  } else {
    DS_CHECK(!tensor, Code::kInvalidArgument, op, ": there is no ", name,
             " in RMS normalisation; leave it empty");
  }
}

template <bool kCentred>
void check_forward(const Op& op, const NormInputs& in, const NormOutputs& out) {
  check_dense_float(in.x, op, "x");
  const DType dtype = in.x.dtype();
  const int64_t cols = row_width(in.x, op, "x"), rows = in.x.elements() / cols;
  if (in.residual) {
    check_dense(in.residual, op, "residual", dtype, in.x.shape());
    DS_CHECK(out.sum, Code::kInvalidArgument, op,
             ": with a residual, sum must be given to receive x + residual");
  }
  if (out.sum) check_dense(out.sum, op, "sum", dtype, in.x.shape());
  check_dense(out.y, op, "y", dtype, in.x.shape());
  check_elements(in.gamma, op, "gamma", dtype, cols);
  check_elements(out.rstd, op, "rstd", DType::kFloat32, rows);
  DS_CHECK(in.eps >= 0 && std::isfinite(in.eps), Code::kInvalidArgument, op,
           ": eps must be finite and not negative, not ", in.eps);
  check_centred<kCentred>(in.beta, op, "beta", dtype, cols);
  check_centred<kCentred>(out.mean, op, "mean", DType::kFloat32, rows);
}

template <bool kCentred>
void check_backward(const Op& op, const NormBackwardInputs& in, const NormGradients& out) {
  check_dense_float(in.dy, op, "dy");
  const DType dtype = in.dy.dtype();
  const int64_t cols = row_width(in.dy, op, "dy"), rows = in.dy.elements() / cols;
  if (in.dsum) check_dense(in.dsum, op, "dsum", dtype, in.dy.shape());
  check_dense(in.sum, op, "sum", dtype, in.dy.shape());
  check_dense(out.dx, op, "dx", dtype, in.dy.shape());
  check_elements(in.gamma, op, "gamma", dtype, cols);
  check_elements(in.rstd, op, "rstd", DType::kFloat32, rows);
  check_elements(out.dgamma, op, "dgamma", DType::kFloat32, cols);
  check_centred<kCentred>(in.mean, op, "mean", DType::kFloat32, rows);
  check_centred<kCentred>(out.dbeta, op, "dbeta", DType::kFloat32, cols);
}

template <class T>
T* data_of(const Tensor& tensor) {
  return tensor ? tensor.data<T>() : nullptr;
}

template <bool kCentred>
void forward(const Op& op, const NormInputs& in, const NormOutputs& out) {
  check_forward<kCentred>(op, in, out);
  const int64_t cols = in.x.size(-1);
  with_float_type(in.x, [&](auto type) {
    using T = decltype(type);
    const kernels::Norm<T, kCentred> call{.rows = in.x.elements() / cols,
                                          .cols = cols,
                                          .x = in.x.data<T>(),
                                          .residual = data_of<T>(in.residual),
                                          .gamma = in.gamma.data<T>(),
                                          .beta = data_of<T>(in.beta),
                                          .eps = in.eps,
                                          .y = out.y.data<T>(),
                                          .sum = data_of<T>(out.sum),
                                          .mean = data_of<float>(out.mean),
                                          .rstd = out.rstd.data<float>()};
    run(op.ctx, [&](auto& on) { kernels::norm_forward(call, on); });
  });
}

template <bool kCentred>
void backward(const Op& op, const NormBackwardInputs& in, const NormGradients& out) {
  check_backward<kCentred>(op, in, out);
  const int64_t cols = in.dy.size(-1);
  with_float_type(in.dy, [&](auto type) {
    using T = decltype(type);
    kernels::NormBackward<T, kCentred> call{.rows = in.dy.elements() / cols,
                                            .cols = cols,
                                            .dy = in.dy.data<T>(),
                                            .dsum = data_of<T>(in.dsum),
                                            .sum = in.sum.data<T>(),
                                            .gamma = in.gamma.data<T>(),
                                            .mean = data_of<float>(in.mean),
                                            .rstd = in.rstd.data<float>(),
                                            .dx = out.dx.data<T>(),
                                            .dgamma = out.dgamma.data<float>(),
                                            .dbeta = data_of<float>(out.dbeta)};
    run(
        op.ctx, [&](auto& on) { return kernels::norm_partials(call, on); },
        [&](float* scratch, auto& on) {
          call.partials = scratch;
          kernels::norm_backward(call, on);
        });
  });
}

}  // namespace

void layer_norm(const OpContext& ctx, const NormInputs& in, const NormOutputs& out) {
  forward<true>({ctx, "layer_norm"}, in, out);
}
void layer_norm_backward(const OpContext& ctx, const NormBackwardInputs& in,
                         const NormGradients& out) {
  backward<true>({ctx, "layer_norm_backward"}, in, out);
}

void rms_norm(const OpContext& ctx, const NormInputs& in, const NormOutputs& out) {
  forward<false>({ctx, "rms_norm"}, in, out);
}
void rms_norm_backward(const OpContext& ctx, const NormBackwardInputs& in,
                       const NormGradients& out) {
  backward<false>({ctx, "rms_norm_backward"}, in, out);
}

}  // namespace ds::ops
