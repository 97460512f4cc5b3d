// Checks and launches of bias + GELU, activations and gated activations.
#include "ops/activation.h"

#include "kernels/activation/activation.h"
#include "kernels/activation/bias_gelu.h"
#include "ops/activation_kind.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

kernels::GeluForm form_of(Gelu kind) {
  return kind == Gelu::kTanh ? kernels::GeluForm::kTanh : kernels::GeluForm::kErf;
}

// Elements between rows [..., N] of the type and shape of `like`; the rows are dense, and all
// leading dimensions step like one.
int64_t row_stride(const Tensor& tensor, const Op& op, const char* name, const Tensor& like) {
  check_float_type(tensor, op, name);
  check_place(tensor, op, name);
  DS_CHECK(tensor.dims() >= 1, Code::kInvalidArgument, op, ": ", name,
           " needs at least one dimension");
  DS_CHECK(tensor.dtype() == like.dtype() && tensor.shape() == like.shape(), Code::kInvalidArgument,
           op, ": ", name, " must be ", dtype_name(like.dtype()), " of shape ", like.shape().text(),
           ", not ", dtype_name(tensor.dtype()), " of shape ", tensor.shape().text());
  if (tensor.elements() == 0) return 0;
  const int64_t columns = tensor.size(-1);
  DS_CHECK(columns == 1 || tensor.stride(-1) == 1, Code::kInvalidArgument, op, ": rows of ", name,
           " must be dense, their stride is ", tensor.stride(-1));
  int64_t stride = 0, rows = 1;  // of the dimensions so far, from the last but one
  for (int i = tensor.dims() - 2; i >= 0; --i) {
    if (tensor.size(i) == 1) continue;
    if (rows == 1) stride = tensor.stride(i);
    DS_CHECK(tensor.stride(i) == stride * rows, Code::kInvalidArgument, op, ": rows of ", name,
             " of shape ", tensor.shape().text(), " must be one stride apart");
    rows *= tensor.size(i);
  }
  return stride;
}

template <class T>
kernels::StridedRows<T> rows_of(const Tensor& tensor, int64_t stride) {
  return {tensor.data<std::remove_const_t<T>>(), stride};
}

// Checks x and bias, and returns the number of columns.
int64_t check_inputs(const Op& op, const Tensor& x, const Tensor& bias) {
  check_dense_float(x, op, "x");
  DS_CHECK(x.dims() >= 1, Code::kInvalidArgument, op, ": x needs at least one dimension");
  if (bias) check_dense(bias, op, "bias", x.dtype(), {x.size(-1)});
  return x.size(-1);
}

}  // namespace

void bias_gelu(const OpContext& ctx, const Tensor& x, const Tensor& bias, Gelu kind, Tensor& y) {
  const Op op{ctx, "bias_gelu"};
  const int64_t columns = check_inputs(op, x, bias);
  check_dense(y, op, "y", x.dtype(), x.shape());
  if (x.elements() == 0) return;
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    const kernels::BiasGelu<T> call{.form = form_of(kind),
                                    .rows = x.elements() / columns,
                                    .columns = columns,
                                    .x = x.data<T>(),
                                    .bias = bias ? bias.data<T>() : nullptr,
                                    .y = y.data<T>()};
    run(ctx, [&](auto& on) { kernels::bias_gelu(call, on); });
  });
}

void bias_gelu_backward(const OpContext& ctx, const Tensor& dy, const Tensor& x, const Tensor& bias,
                        Gelu kind, Tensor& dx, Tensor& db) {
  const Op op{ctx, "bias_gelu_backward"};
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
    const kernels::BiasGeluBackward<T> call{.form = form_of(kind),
                                            .rows = rows,
                                            .columns = columns,
                                            .dy = dy.data<T>(),
                                            .x = x.data<T>(),
                                            .bias = bias ? bias.data<T>() : nullptr,
                                            .dx = dx.data<T>(),
                                            .db = db ? db.data<float>() : nullptr,
                                            .partials = db ? partials.data<float>() : nullptr};
    run(ctx, [&](auto& on) { kernels::bias_gelu_backward(call, on); });
  });
}

void activation(const OpContext& ctx, const Tensor& x, Activation kind, Tensor& y) {
  const Op op{ctx, "activation"};
  check_dense_float(x, op, "x");
  check_dense(y, op, "y", x.dtype(), x.shape());
  const kernels::ActivationKind f = kind_of(kind, op);
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    run(ctx, [&](auto& on) { kernels::activation(x.data<T>(), f, x.elements(), y.data<T>(), on); });
  });
}

void activation_backward(const OpContext& ctx, const Tensor& dy, const Tensor& x, Activation kind,
                         Tensor& dx) {
  const Op op{ctx, "activation_backward"};
  check_dense_float(x, op, "x");
  check_dense(dy, op, "dy", x.dtype(), x.shape());
  check_dense(dx, op, "dx", x.dtype(), x.shape());
  const kernels::ActivationKind f = kind_of(kind, op);
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    run(ctx, [&](auto& on) {
      kernels::activation_backward(dy.data<T>(), x.data<T>(), f, x.elements(), dx.data<T>(), on);
    });
  });
}

void gated_activation(const OpContext& ctx, const Tensor& gate, const Tensor& up, Activation kind,
                      Tensor& y) {
  const Op op{ctx, "gated_activation"};
  check_float_type(gate, op, "gate");
  const int64_t gate_stride = row_stride(gate, op, "gate", gate);
  const int64_t up_stride = row_stride(up, op, "up", gate);
  check_dense(y, op, "y", gate.dtype(), gate.shape());
  const kernels::ActivationKind f = kind_of(kind, op);
  if (gate.elements() == 0) return;
  with_float_type(gate, [&](auto type) {
    using T = decltype(type);
    kernels::GatedActivation<T> call;
    call.kind = f;
    call.cols = gate.size(-1);
    call.rows = gate.elements() / call.cols;
    call.gate = rows_of<const T>(gate, gate_stride);
    call.up = rows_of<const T>(up, up_stride);
    call.y = rows_of<T>(y, call.cols);
    run(ctx, [&](auto& on) { kernels::gated_activation(call, on); });
  });
}

void gated_activation_backward(const OpContext& ctx, const Tensor& dy, const Tensor& gate,
                               const Tensor& up, Activation kind, Tensor& dgate, Tensor& dup) {
  const Op op{ctx, "gated_activation_backward"};
  check_float_type(gate, op, "gate");
  const int64_t gate_stride = row_stride(gate, op, "gate", gate);
  const int64_t up_stride = row_stride(up, op, "up", gate);
  const int64_t dy_stride = row_stride(dy, op, "dy", gate);
  const int64_t dgate_stride = row_stride(dgate, op, "dgate", gate);
  const int64_t dup_stride = row_stride(dup, op, "dup", gate);
  const kernels::ActivationKind f = kind_of(kind, op);
  if (gate.elements() == 0) return;
  with_float_type(gate, [&](auto type) {
    using T = decltype(type);
    kernels::GatedActivationBackward<T> call;
    call.kind = f;
    call.cols = gate.size(-1);
    call.rows = gate.elements() / call.cols;
    call.dy = rows_of<const T>(dy, dy_stride);
    call.gate = rows_of<const T>(gate, gate_stride);
    call.up = rows_of<const T>(up, up_stride);
    call.dgate = rows_of<T>(dgate, dgate_stride);
    call.dup = rows_of<T>(dup, dup_stride);
    run(ctx, [&](auto& on) { kernels::gated_activation_backward(call, on); });
  });
}

}  // namespace ds::ops
