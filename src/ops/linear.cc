// Linear layers on the matrix product wrapper.
#include "ops/linear.h"

#include "ops/activation_kind.h"
#include "ops/checks.h"
#include "ops/elementwise.h"
#include "ops/product.h"
#include "ops/reduce.h"
#include "ops/rows.h"

namespace ds::ops {
namespace {

using kernels::MatmulType;

MatmulType product_type(const Tensor& tensor, const Op& op, const char* name) {
  check_dense_float(tensor, op, name);
  return ops::matmul_type(tensor);
}

// The same of a tensor that may be columns of another.
MatmulType columns_type(const Tensor& tensor, const Op& op, const char* name) {
  check_float_type(tensor, op, name);
  check_place(tensor, op, name);
  return ops::matmul_type(tensor);
}

// Results have the type of the inputs, or fp32.
void check_output(const Tensor& y, const char* y_name, const Tensor& x, const char* x_name,
                  const Op& op) {
  DS_CHECK(y.dtype() == x.dtype() || y.dtype() == DType::kFloat32, Code::kInvalidArgument, op, ": ",
           y_name, " cannot be ", dtype_name(y.dtype()), " while ", x_name, " is ",
           dtype_name(x.dtype()));
}

void check_same_type(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name,
                     const Op& op) {
  DS_CHECK(a.dtype() == b.dtype(), Code::kInvalidArgument, op, ": ", a_name, " is ",
           dtype_name(a.dtype()), " but ", b_name, " is ", dtype_name(b.dtype()));
}

void check_leading(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name,
                   const Op& op) {
  bool same = a.dims() == b.dims();
  for (int i = 0; same && i + 1 < a.dims(); ++i) same = a.size(i) == b.size(i);
  DS_CHECK(same, Code::kInvalidArgument, op, ": ", a_name, " ", a.shape().text(), " and ", b_name,
           " ", b.shape().text(), " must agree in all dimensions but the last");
}

void check_weight(const Tensor& w, const char* name, int64_t n, int64_t k, const Op& op) {
  DS_CHECK(w.dims() == 2 && w.size(0) == n && w.size(1) == k, Code::kInvalidArgument, op, ": ",
           name, " ", w.shape().text(), " must be [", n, ", ", k, "]");
}

// x w^T + bias, checked.
kernels::Matmul forward_product(const Op& op, const Tensor& x, const Tensor& w, const Tensor& bias,
                                const Tensor& y) {
  kernels::Matmul p;
  p.any_order = op.ctx.any_order;
  p.in = product_type(x, op, "x");
  p.out = columns_type(y, op, "y");
  product_type(w, op, "w");
  check_same_type(x, "x", w, "w", op);
  check_output(y, "y", x, "x", op);
  const Rows in = as_rows(x, op, "x"), out = as_rows(y, op, "y");
  check_leading(x, "x", y, "y", op);
  check_weight(w, "w", out.columns, in.columns, op);
  if (bias) {
    product_type(bias, op, "bias");
    check_same_type(x, "x", bias, "bias", op);
    DS_CHECK(bias.dims() == 1 && bias.size(0) == out.columns, Code::kInvalidArgument, op, ": bias ",
             bias.shape().text(), " must be [", out.columns, "]");
  }
  p.m = in.rows;
  p.n = out.columns;
  p.k = in.columns;
  p.a = {x.raw(), p.k, false};
  p.b = {w.raw(), p.k, true};
  p.bias = bias.raw();
  p.c = y.raw();
  p.c_stride = out.stride;
  return p;
}

// dy w, checked.
kernels::Matmul input_product(const Op& op, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  kernels::Matmul p;
  p.in = columns_type(dy, op, "dy");
  p.out = product_type(dx, op, "dx");
  product_type(w, op, "w");
  check_same_type(dy, "dy", w, "w", op);
  check_output(dx, "dx", dy, "dy", op);
  const Rows out = as_rows(dy, op, "dy"), in = as_rows(dx, op, "dx");
  check_leading(dy, "dy", dx, "dx", op);
  check_weight(w, "w", out.columns, in.columns, op);
  p.m = out.rows;
  p.n = in.columns;
  p.k = out.columns;
  p.a = {dy.raw(), out.stride, false};
  p.b = {w.raw(), p.n, false};
  p.c = dx.raw();
  p.c_stride = p.n;
  return p;
}

// dy^T x, checked.
kernels::Matmul weight_product(const Op& op, const Tensor& dy, const Tensor& x, const Tensor& dw,
                               bool accumulate) {
  kernels::Matmul p;
  p.in = columns_type(dy, op, "dy");
  product_type(x, op, "x");
  check_same_type(dy, "dy", x, "x", op);
  DS_CHECK(product_type(dw, op, "dw") == MatmulType::kFloat32, Code::kInvalidArgument, op,
           ": dw must be float32, because gradients accumulate");
  const Rows out = as_rows(dy, op, "dy"), in = as_rows(x, op, "x");
  check_leading(dy, "dy", x, "x", op);
  check_weight(dw, "dw", out.columns, in.columns, op);
  p.m = out.columns;
  p.n = in.columns;
  p.k = out.rows;
  p.a = {dy.raw(), out.stride, true};
  p.b = {x.raw(), p.n, false};
  p.c = dw.raw();
  p.c_stride = p.n;
  p.accumulate = accumulate;
  return p;
}

}  // namespace

void linear(const OpContext& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) {
  multiply(ctx, forward_product(Op{ctx, "linear"}, x, w, bias, y));
}

void linear_activation(const OpContext& ctx, const Tensor& x, const Tensor& w, const Tensor& bias,
                       Activation kind, Tensor& pre, Tensor& y) {
  const Op op{ctx, "linear_activation"};
  kernels::Matmul p = forward_product(op, x, w, bias, y);
  p.activation = kind_of(kind, op);
  if (pre) {
    DS_CHECK(pre.dtype() == y.dtype() && pre.shape() == y.shape() && pre.contiguous(),
             Code::kInvalidArgument, op, ": pre must be ", dtype_name(y.dtype()), " ",
             y.shape().text(), " and contiguous, like y");
    p.pre = pre.raw();
    p.pre_stride = p.n;
  }
  // Everywhere the same form of product with and without pre, so that y has the same bits.
  Tensor scratch;
  if (!pre && ctx.device->kind() == DeviceKind::kCuda) {
    scratch = ctx.workspace(y.dtype(), y.shape());
    p.pre = scratch.raw();
    p.pre_stride = p.n;
  }
  multiply(ctx, p);
}

void linear_grad_input(const OpContext& ctx, const Tensor& dy, const Tensor& w, Tensor& dx,
                       bool accumulate) {
  kernels::Matmul p = input_product(Op{ctx, "linear_grad_input"}, dy, w, dx);
  p.accumulate = accumulate;
  multiply(ctx, p);
}

bool linear_grad_input_gelu(const OpContext& ctx, const Tensor& dy, const Tensor& w,
                            const Tensor& pre, Gelu kind, Tensor& dpre, Tensor& db) {
  const Op op{ctx, "linear_grad_input_gelu"};
  kernels::Matmul p = input_product(op, dy, w, dpre);
  check_dense(pre, op, "pre", dpre.dtype(), dpre.shape());
  if (db) check_dense(db, op, "db", DType::kFloat32, {p.n});
  bool fused = false;
  if (kind == Gelu::kTanh) {
    run(ctx, [&](auto& on) {
      if constexpr (kRunsOnGpu<decltype(on)>) {
        kernels::Matmul slope = p;
        slope.activation = kernels::ActivationKind::kGeluTanh;
        slope.pre = pre.raw();
        slope.pre_stride = p.n;
        const Tensor workspace = give_workspace(ctx, slope, on, kernels::MatmulExtra::kSlope);
        fused = kernels::matmul_times_derivative(slope, on);
      }
    });
  }
  if (fused) return false;
  multiply(ctx, p);
  bias_gelu_backward(ctx, dpre, pre, Tensor(), kind, dpre, db);
  return true;
}

void linear_grad_weight(const OpContext& ctx, const Tensor& dy, const Tensor& x, Tensor& dw,
                        bool accumulate) {
  multiply(ctx, weight_product(Op{ctx, "linear_grad_weight"}, dy, x, dw, accumulate));
}

void linear_grad_bias(const OpContext& ctx, const Tensor& dy, Tensor& db) {
  add_column_sums(ctx, dy, db);
}

void linear_grad_weight_bias(const OpContext& ctx, const Tensor& dy, const Tensor& x, Tensor& dw,
                             Tensor& db, bool accumulate) {
  const Op op{ctx, "linear_grad_weight_bias"};
  kernels::Matmul p = weight_product(op, dy, x, dw, accumulate);
  check_elements(db, op, "db", DType::kFloat32, p.m);
  Tensor sums;
  run(ctx, [&](auto& on) {
    if constexpr (kRunsOnGpu<decltype(on)>) {
      sums = ctx.workspace(DType::kFloat32, {p.m});
      const Tensor workspace =
          give_workspace(ctx, p, on, kernels::MatmulExtra::kSums, sums.data<float>());
      if (!kernels::matmul_with_sums(p, sums.data<float>(), on)) sums = Tensor();
    }
  });
  if (sums) return add(ctx, db, sums, db);
  linear_grad_weight(ctx, dy, x, dw, accumulate);
  linear_grad_bias(ctx, dy, db);
}

}  // namespace ds::ops
