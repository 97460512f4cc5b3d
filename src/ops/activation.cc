// Checks and launches of bias + GELU.
#include "ops/activation.h"

#include "kernels/activation/bias_gelu.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

kernels::GeluForm form_of(Gelu kind) {
  return kind == Gelu::kTanh ? kernels::GeluForm::kTanh : kernels::GeluForm::kErf;
}

// Checks x and bias, and returns the number of columns.
int64_t check_inputs(const char* op, const Tensor& x, const Tensor& bias) {
  check_dense_float(x, op, "x");
  DS_CHECK(x.dims() >= 1, Code::kInvalidArgument, op, ": x needs at least one dimension");
  if (bias) check_dense(bias, op, "bias", x.dtype(), {x.size(-1)});
  return x.size(-1);
}

}  // namespace

void bias_gelu(const OpContext& ctx, const Tensor& x, const Tensor& bias, Gelu kind, Tensor& y) {
  const char* const op = "bias_gelu";
  const int64_t columns = check_inputs(op, x, bias);
  check_dense(y, op, "y", x.dtype(), x.shape());
  if (x.elements() == 0) return;
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::bias_gelu(x.data<T>(), bias ? bias.data<T>() : nullptr, form_of(kind),
                       x.elements() / columns, columns, y.data<T>(), *ctx.pool);
  });
}

void bias_gelu_backward(const OpContext& ctx, const Tensor& dy, const Tensor& x, const Tensor& bias,
                        Gelu kind, Tensor& dx, Tensor& db) {
  const char* const op = "bias_gelu_backward";
  const int64_t columns = check_inputs(op, x, bias);
  check_dense(dy, op, "dy", x.dtype(), x.shape());
  check_dense(dx, op, "dx", x.dtype(), x.shape());
  if (db) check_dense(db, op, "db", DType::kFloat32, {columns});
  if (x.elements() == 0) return;
  const int64_t rows = x.elements() / columns;
  Tensor partials;
  if (db) {
    partials = ctx.workspace(DType::kFloat32, {kernels::bias_gelu_chunks(rows, columns), columns});
  }
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::bias_gelu_backward(dy.data<T>(), x.data<T>(), bias ? bias.data<T>() : nullptr,
                                form_of(kind), rows, columns, dx.data<T>(),
                                db ? db.data<float>() : nullptr,
                                db ? partials.data<float>() : nullptr, *ctx.pool);
  });
}

}  // namespace ds::ops
