// Checks and launches of the rotary embedding.
#include "ops/rotary.h"

#include "kernels/rotary/rotary.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

void check_heads(const Tensor& tensor, const Op& op, const char* name) {
  check_float_type(tensor, op, name);
  check_place(tensor, op, name);
  DS_CHECK(tensor.dims() == 4, Code::kInvalidArgument, "rotary: ", name, " of shape ",
           tensor.shape().text(), " must be [batch, tokens, heads, head size]");
  DS_CHECK(tensor.stride(-1) == 1 || tensor.size(-1) <= 1 || tensor.elements() == 0,
           Code::kInvalidArgument, "rotary: the last dimension of ", name,
           " must be dense, its stride is ", tensor.stride(-1));
}

template <class T>
kernels::RotaryView<T> view(const Tensor& tensor) {
  return {tensor.data<std::remove_const_t<T>>(), tensor.stride(0), tensor.stride(1),
          tensor.stride(2)};
}

}  // namespace

void rotary(const OpContext& ctx, const Tensor& x, const Tensor& position_ids, const Tensor& cos,
            const Tensor& sin, const RotaryOptions& options, Tensor& y) {
  const Op op{ctx, "rotary"};
  check_heads(x, op, "x");
  check_heads(y, op, "y");
  DS_CHECK(y.dtype() == x.dtype() && y.shape() == x.shape(), Code::kInvalidArgument,
           "rotary: y must be ", dtype_name(x.dtype()), " of shape ", x.shape().text(), ", not ",
           dtype_name(y.dtype()), " of shape ", y.shape().text());
  bool same_strides = true;
  for (int i = 0; i < 3; ++i) same_strides &= x.stride(i) == y.stride(i) || x.size(i) <= 1;
  DS_CHECK(x.raw() != y.raw() || same_strides || x.elements() == 0, Code::kInvalidArgument,
           "rotary: y starts where x does, but has other strides");
  check_dense(cos, op, "cos", DType::kFloat32);
  DS_CHECK(cos.dims() == 2 && cos.size(1) <= x.size(3) / 2, Code::kInvalidArgument,
           "rotary: cos of shape ", cos.shape().text(),
           " must be [positions, half of the turned channels], of at most ", x.size(3));
  check_dense(sin, op, "sin", DType::kFloat32, cos.shape());
  check_dense(position_ids, op, "position_ids", DType::kInt32, {x.size(0), x.size(1)});
  const auto* position = position_ids.data<int32_t>();
  // A GPU's memory is not read here: its kernel keeps to the tables.
  const bool readable = ctx.device->kind() == DeviceKind::kCpu;
  for (int64_t i = 0; readable && i < position_ids.elements(); ++i) {
    DS_CHECK(position[i] >= 0 && position[i] < cos.size(0), Code::kInvalidArgument,
             "rotary: position_ids[", i / x.size(1), ", ", i % x.size(1), "] is ", position[i],
             ", outside the tables of ", cos.size(0), " positions");
  }
  if (x.elements() == 0) return;
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::Rotary<T> call;
    call.batch = x.size(0);
    call.tokens = x.size(1);
    call.heads = x.size(2);
    call.head_dim = x.size(3);
    call.turned = 2 * cos.size(1);
    call.interleaved = options.interleaved;
    call.inverse = options.inverse;
    call.x = view<const T>(x);
    call.y = view<T>(y);
    call.positions = position;
    call.rows = cos.size(0);
    call.cos = cos.data<float>();
    call.sin = sin.data<float>();
    run(ctx, [&](auto& on) { kernels::rotary(call, on); });
  });
}

}  // namespace ds::ops
