#include "ops/fp8.h"

#include "ops/activation_kind.h"
#include "ops/checks.h"
#include "ops/product.h"

namespace ds::ops {
namespace {

using kernels::MatmulType;

// bf16 seen as a matrix whose rows lie `stride` apart.
struct Rows {
  int64_t rows = 1, columns = 0, stride = 0;
};
Rows rows_of(const Tensor& x, const Op& op, const char* name) {
  check_place(x, op, name);
  DS_CHECK(x.dtype() == DType::kBFloat16 && x.dims() >= 1, Code::kInvalidArgument, op, ": ", name,
           " must be bfloat16 with a dimension or more, not ", dtype_name(x.dtype()), " ",
           x.shape().text());
  Rows out;
  out.columns = x.size(-1);
  for (int i = 0; i + 1 < x.dims(); ++i) out.rows *= x.size(i);
  out.stride = out.columns;
  if (x.contiguous()) return out;
  bool even = x.dims() >= 2 && x.stride(-1) == 1;
  for (int i = 0; i + 2 < x.dims(); ++i) {
    even = even && x.stride(i) == x.stride(i + 1) * x.size(i + 1);
  }
  DS_CHECK(even, Code::kInvalidArgument, op, ": ", name, " of shape ", x.shape().text(),
           " must be contiguous, or columns of a contiguous matrix");
  out.stride = x.stride(-2);
  return out;
}

void check_scaling(const Fp8Scaling& scaling, const Op& op) {
  check_elements(scaling.scale, op, "scale", DType::kFloat32, 1);
  check_elements(scaling.inverse, op, "inverse", DType::kFloat32, 1);
  check_elements(scaling.amax, op, "amax", DType::kFloat32, 1);
}

void check_codes(const Fp8Tensor& x, const Op& op, const char* name) {
  DS_CHECK(x.codes || x.transposed, Code::kInvalidArgument, op, ": ", name, " has no codes");
  for (const Tensor* const codes : {&x.codes, &x.transposed}) {
    if (!*codes) continue;
    check_dense(*codes, op, name, DType::kUInt8);
    DS_CHECK(codes->dims() == 2, Code::kInvalidArgument, op, ": codes of ", name,
             " must be a matrix, not ", codes->shape().text());
  }
  check_elements(x.inverse, op, "inverse", DType::kFloat32, 1);
}

// A matrix of codes as a product reads it: `along` has its sums side by side, `across` is its
// transpose; one of them may be empty.
struct Operand {
  const Fp8Tensor& of;
  const Tensor& along;
  const Tensor& across;
  int64_t rows() const { return along ? along.size(0) : across.size(1); }
  int64_t depth() const { return along ? along.size(1) : across.size(0); }
};
Operand plain(const Fp8Tensor& x) { return {x, x.codes, x.transposed}; }
Operand transposed_operand(const Fp8Tensor& x) { return {x, x.transposed, x.codes}; }

template <class On>
Tensor widened(const OpContext& ctx, const Operand& x, On& on, kernels::MatmulInput& input,
               bool first) {
  const Tensor& codes = x.along ? x.along : x.across;
  Tensor wide = ctx.workspace(DType::kBFloat16, codes.shape());
  kernels::fp8_widen(x.of.format, codes.data<uint8_t>(), codes.elements(),
                     x.of.inverse.data<float>(), wide.data<bfloat16>(), on);
  // The second operand of a product is [k, n]: rows of k are its transpose.
  input = {wide.raw(), codes.size(1), first != static_cast<bool>(x.along)};
  return wide;
}

// C = A B^T (+ bias) (+ C), where A is [m, k] and B [n, k].
void multiply_codes(const Op& op, const Operand& a, const Operand& b, const Tensor& bias, Tensor& c,
                    bool accumulate, bool fast = false) {
  const int64_t m = a.rows(), n = b.rows(), k = a.depth();
  DS_CHECK(b.depth() == k, Code::kInvalidArgument, op, ": operands with ", k, " and ", b.depth(),
           " terms");
  check_elements(c, op, "the result", c.dtype(), m * n);
  DS_CHECK(c.dtype() == DType::kBFloat16 || c.dtype() == DType::kFloat32, Code::kInvalidArgument,
           op, ": the result cannot be ", dtype_name(c.dtype()));
  if (bias) check_dense(bias, op, "bias", DType::kBFloat16, {n});
  run(op.ctx, [&](auto& on) {
    if constexpr (kRunsOnGpu<decltype(on)>) {
      kernels::Fp8Matmul p;
      p.m = m;
      p.n = n;
      p.k = k;
      p.a_format = a.of.format;
      p.b_format = b.of.format;
      p.a_inverse = a.of.inverse.data<float>();
      p.b_inverse = b.of.inverse.data<float>();
      p.out = ops::matmul_type(c);
      p.bias = bias ? bias.data<bfloat16>() : nullptr;
      p.c = c.raw();
      p.accumulate = accumulate;
      p.fast_accumulation = fast;
      if (a.along && b.along) {
        p.a = a.along.template data<uint8_t>();
        p.b = b.along.template data<uint8_t>();
        p.workspace_bytes = kernels::fp8_matmul_workspace(p, on);
        Tensor workspace;
        if (p.workspace_bytes > 0) {
          workspace = op.ctx.workspace(DType::kUInt8, {p.workspace_bytes});
          p.workspace = workspace.raw();
        }
        if (kernels::fp8_matmul(p, on)) return;
      }
    }
    kernels::Matmul p;
    p.m = m;
    p.n = n;
    p.k = k;
    p.in = MatmulType::kBFloat16;
    p.out = ops::matmul_type(c);
    const Tensor wide_a = widened(op.ctx, a, on, p.a, true);
    const Tensor wide_b = widened(op.ctx, b, on, p.b, false);
    p.bias = bias.raw();
    p.c = c.raw();
    p.c_stride = n;
    p.accumulate = accumulate;
    multiply(op.ctx, p);
  });
}

// What is made of x while it is cast.
void apply_to(kernels::Fp8Cast& call, const Fp8Source& source, const Op& op) {
  call.activation = kind_of(*source.activation, op);
  const Tensor& other = source.up ? source.up : source.dy;
  if (!other) return;
  const Rows of_other = rows_of(other, op, source.up ? "up" : "dy");
  DS_CHECK(other.shape() == source.x.shape(), Code::kInvalidArgument, op, ": ",
           source.up ? "up" : "dy", " must be ", source.x.shape().text(), " like x, not ",
           other.shape().text());
  (source.up ? call.up : call.dy) = other.data<bfloat16>();
  call.other_stride = of_other.stride;
}

}  // namespace

bool fp8_wants_transposed(const OpContext& ctx) {
  return kWithCuda && ctx.device->kind() == DeviceKind::kCuda;
}

Tensor fp8_made(const OpContext& ctx, const Fp8Source& source) {
  if (!source.activation) return source.x;
  Tensor out = ctx.workspace(source.x.dtype(), source.x.shape());
  if (source.up) {
    gated_activation(ctx, source.x, source.up, *source.activation, out);
  } else if (source.dy) {
    activation_backward(ctx, source.dy, source.x, *source.activation, out);
  } else {
    activation(ctx, source.x, *source.activation, out);
  }
  return out;
}

void fp8_cast(const OpContext& ctx, const Fp8Source& source, const Fp8Scaling& scaling,
              Fp8Tensor& out, Tensor& sums) {
  const bool on_gpu = kWithCuda && ctx.device->kind() == DeviceKind::kCuda;
  if (source.activation && !on_gpu) return fp8_cast(ctx, fp8_made(ctx, source), scaling, out, sums);
  const Op op{ctx, "fp8_cast"};
  const Rows in = rows_of(source.x, op, "x");
  check_scaling(scaling, op);
  if (out.codes) check_dense(out.codes, op, "codes", DType::kUInt8, {in.rows, in.columns});
  if (out.transposed) {
    check_dense(out.transposed, op, "transposed codes", DType::kUInt8, {in.columns, in.rows});
  }
  if (sums) check_dense(sums, op, "sums", DType::kFloat32, {in.columns});
  out.inverse = scaling.inverse;
  kernels::Fp8Cast call;
  call.format = out.format;
  call.x = source.x.data<bfloat16>();
  call.rows = in.rows;
  call.columns = in.columns;
  call.stride = in.stride;
  call.scale = scaling.scale.data<float>();
  call.amax = scaling.amax.data<float>();
  call.codes = out.codes ? out.codes.data<uint8_t>() : nullptr;
  call.transposed = out.transposed ? out.transposed.data<uint8_t>() : nullptr;
  if (source.activation) apply_to(call, source, op);
  Tensor partials;
  if (sums) {
    partials = ctx.workspace(DType::kFloat32, {kernels::fp8_sum_parts(in.rows), in.columns});
    call.sums = sums.data<float>();
    call.partials = partials.data<float>();
  }
  run(ctx, [&](auto& on) { kernels::fp8_cast(call, on); });
}

void fp8_first_scale(const OpContext& ctx, const Tensor& x, Fp8Format format, int margin,
                     Fp8Scaling& scaling) {
  const Op op{ctx, "fp8_first_scale"};
  const Rows in = rows_of(x, op, "x");
  check_scaling(scaling, op);
  const kernels::Fp8FirstScale call{format,
                                    x.data<bfloat16>(),
                                    in.rows,
                                    in.columns,
                                    in.stride,
                                    margin,
                                    scaling.scale.data<float>(),
                                    scaling.inverse.data<float>(),
                                    scaling.amax.data<float>()};
  run(ctx, [&](auto& on) { kernels::fp8_first_scale(call, on); });
}

void fp8_linear(const OpContext& ctx, const Fp8Tensor& x, const Fp8Tensor& w, const Tensor& bias,
                Tensor& y, bool fast) {
  const Op op{ctx, "fp8_linear"};
  check_codes(x, op, "x");
  check_codes(w, op, "w");
  multiply_codes(op, plain(x), plain(w), bias, y, false, fast);
}

void fp8_linear_grad_input(const OpContext& ctx, const Fp8Tensor& dy, const Fp8Tensor& w,
                           Tensor& dx) {
  const Op op{ctx, "fp8_linear_grad_input"};
  check_codes(dy, op, "dy");
  check_codes(w, op, "w");
  multiply_codes(op, plain(dy), transposed_operand(w), Tensor(), dx, false);
}

void fp8_linear_grad_weight(const OpContext& ctx, const Fp8Tensor& dy, const Fp8Tensor& x,
                            Tensor& dw, bool accumulate) {
  const Op op{ctx, "fp8_linear_grad_weight"};
  check_codes(dy, op, "dy");
  check_codes(x, op, "x");
  check_dense(dw, op, "dw", DType::kFloat32);
  multiply_codes(op, transposed_operand(dy), transposed_operand(x), Tensor(), dw, accumulate);
}

void fp8_update(const OpContext& ctx, const Fp8Histories& all) {
  const Op op{ctx, "fp8_update"};
  const int64_t n = all.amax.elements();
  check_dense(all.amax, op, "amax", DType::kFloat32, {n});
  check_dense(all.scale, op, "scale", DType::kFloat32, {n});
  const int64_t step = all.inverse.dims() == 2 ? all.inverse.size(1) : 1;
  check_elements(all.inverse, op, "inverse", DType::kFloat32, n * step);
  check_dense(all.history, op, "history", DType::kFloat32);
  DS_CHECK(all.history.dims() == 2 && all.history.size(0) == n && all.history.size(1) >= 1,
           Code::kInvalidArgument, op, ": history must be [", n, ", steps], not ",
           all.history.shape().text());
  const auto kinds = static_cast<int64_t>(all.formats.size());
  DS_CHECK(kinds >= 1 && kinds <= kernels::kMostFp8Kinds, Code::kInvalidArgument, op, ": ", kinds,
           " kinds of tensors");
  kernels::Fp8Update call;
  call.tensors = n;
  call.formats = all.formats.data();
  call.kinds = kinds;
  call.length = all.history.size(1);
  call.most_recent = all.most_recent;
  call.margin = all.margin;
  call.amax = all.amax.data<float>();
  call.history = all.history.data<float>();
  call.scale = all.scale.data<float>();
  call.inverse = all.inverse.data<float>();
  call.inverse_step = step;
  run(ctx, [&](auto& on) { kernels::fp8_update(call, on); });
}

}  // namespace ds::ops
