// Checks and launches of the rotary embedding.
#include "ops/rotary.h"

#include "kernels/attention/token_codes.h"
#include "kernels/rotary/rotary.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

void check_heads(const Tensor& tensor, const Op& op, const char* name, bool codes = false) {
  if (!codes) check_float_type(tensor, op, name);
  check_place(tensor, op, name);
  DS_CHECK(tensor.dims() == 4, Code::kInvalidArgument, op, ": ", name, " of shape ",
           tensor.shape().text(), " must be [batch, tokens, heads, head size]");
  DS_CHECK(tensor.stride(-1) == 1 || tensor.size(-1) <= 1 || tensor.elements() == 0,
           Code::kInvalidArgument, op, ": the last dimension of ", name,
           " must be dense, its stride is ", tensor.stride(-1));
}

// Tables and positions of x.
void check_angles(const Op& op, const Tensor& x, const RotaryAngles& angles) {
  const Tensor& cos = angles.cos;
  check_dense(cos, op, "cos", DType::kFloat32);
  DS_CHECK(cos.dims() == 2 && cos.size(1) <= x.size(3) / 2, Code::kInvalidArgument, op,
           ": cos of shape ", cos.shape().text(),
           " must be [positions, half of the rotated channels], of at most ", x.size(3));
  check_dense(angles.sin, op, "sin", DType::kFloat32, cos.shape());
  check_dense(angles.position_ids, op, "position_ids", DType::kInt32, {x.size(0), x.size(1)});
  // A GPU's memory is not read here: its kernel keeps to the tables.
  if (op.ctx.device->kind() != DeviceKind::kCpu) return;
  const auto* const position = angles.position_ids.data<int32_t>();
  for (int64_t i = 0; i < angles.position_ids.elements(); ++i) {
    DS_CHECK(position[i] >= 0 && position[i] < cos.size(0), Code::kInvalidArgument, op,
             ": position_ids[", i / x.size(1), ", ", i % x.size(1), "] is ", position[i],
             ", outside the tables of ", cos.size(0), " positions");
  }
}

void check_like(const Op& op, const Tensor& tensor, const char* name, DType dtype,
                const Shape& shape) {
  check_heads(tensor, op, name, dtype == DType::kInt8);
  DS_CHECK(tensor.dtype() == dtype && tensor.shape() == shape, Code::kInvalidArgument, op, ": ",
           name, " must be ", dtype_name(dtype), " of shape ", shape.text(), ", not ",
           dtype_name(tensor.dtype()), " of shape ", tensor.shape().text());
}

// Of a cache: numbers of the type of new ones, or codes with their scales.
void check_rows(const Op& op, const Tensor& rows, const char* name, const CacheRows& to,
                DType dtype, const Shape& shape) {
  if (!to.coded()) return check_like(op, rows, name, dtype, shape);
  check_like(op, rows, name, DType::kInt8, shape);
  for (const Tensor& scales : {to.key_scales, to.value_scales}) {
    check_tensor(scales, "scales of the cache", DType::kFloat32, {shape[0], shape[1], shape[2]});
    check_place(scales, op, "scales of the cache");
  }
}

void check_cache(const Op& op, const Tensor& k, bool with_values, const CacheRows& to) {
  check_heads(to.keys, op, "keys", to.coded());
  const int64_t block_tokens = to.keys.size(1), capacity = to.capacity();
  const Shape shape{to.blocks ? 1 : k.size(0), block_tokens, k.size(2), k.size(3)};
  check_rows(op, to.keys, "keys", to, k.dtype(), shape);
  if (with_values) check_rows(op, to.values, "values", to, k.dtype(), shape);
  if (to.blocks) check_blocks(op, to.blocks, k.size(0), block_tokens);
  if (to.coded()) {
    DS_CHECK(with_values && op.ctx.device->kind() == DeviceKind::kCpu, Code::kUnsupported, op,
             ": a cache of codes has keys and values, and lies in the memory of a CPU");
    if (to.blocks) check_scale_blocks(op, to.blocks);
  }
  if (to.past_memory) {
    check_dense(to.past_memory, op, "past_memory", DType::kInt32, {k.size(0)});
    if (op.ctx.device->kind() != DeviceKind::kCpu) return;
  }
  for (int64_t b = 0; b < k.size(0); ++b) {
    const int64_t past = to.past_memory ? to.past_memory.data<int32_t>()[b] : to.past;
    DS_CHECK(past >= 0 && past + k.size(1) <= capacity, Code::kInvalidArgument, op, ": ", k.size(1),
             " tokens do not fit behind ", past, " in a cache of ", capacity);
    if (to.blocks) check_tokens(op, to.blocks, b, past + k.size(1), block_tokens);
  }
}

template <class T>
kernels::RotaryView<T> view(const Tensor& tensor) {
  kernels::RotaryView<T> out;
  out.data = tensor.data<std::remove_const_t<T>>();
  out.batch = tensor.stride(0);
  out.token = tensor.stride(1);
  out.head = tensor.stride(2);
  return out;
}

}  // namespace

// New tokens to where codes lie.
template <class T>
void append_codes(const OpContext& ctx, const Tensor& x, const CacheRows& to, bool values) {
  const Tensor& codes = values ? to.values : to.keys;
  const Tensor& scales = values ? to.value_scales : to.key_scales;
  kernels::TokenCodes<T> call;
  call.batch = x.size(0);
  call.tokens = x.size(1);
  call.heads = x.size(2);
  call.size = x.size(3);
  call.x = {x.data<T>(), x.stride(0), x.stride(1), x.stride(2)};
  call.to.codes = {codes.data<int8_t>(), codes.stride(0), codes.stride(1), codes.stride(2)};
  call.to.scales = {scales.data<float>(), scales.stride(0), scales.stride(1), scales.stride(2)};
  if (to.blocks) {
    const TokenBlocks& tables = to.blocks;
    call.to.blocks = table_of(values ? tables.values : tables.keys, codes.size(1));
    call.to.scale_blocks =
        table_of(values ? tables.value_scales : tables.key_scales, codes.size(1));
  }
  call.past = to.past;
  if (to.past_memory) call.past_of_each = to.past_memory.data<int32_t>();
  kernels::quantize_tokens(call, *ctx.pool);
}

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
  check_angles(op, x, {position_ids, cos, sin});
  if (x.elements() == 0) return;
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::Rotary<T> call;
    call.batch = x.size(0);
    call.tokens = x.size(1);
    call.heads = x.size(2);
    call.head_dim = x.size(3);
    call.rotary_dim = 2 * cos.size(1);
    call.interleaved = options.interleaved;
    call.inverse = options.inverse;
    call.x = view<const T>(x);
    call.y = view<T>(y);
    call.positions = position_ids.data<int32_t>();
    call.rows = cos.size(0);
    call.cos = cos.data<float>();
    call.sin = sin.data<float>();
    run(ctx, [&](auto& on) { kernels::rotary(call, on); });
  });
}

void rotary_append(const OpContext& ctx, Tensor& q, const Tensor& k, const Tensor& v,
                   const RotaryAngles& angles, const RotaryOptions& options, const CacheRows& to) {
  const Op op{ctx, "rotary_append"};
  check_heads(q, op, "q");
  check_heads(k, op, "k");
  check_like(op, k, "k", q.dtype(), {q.size(0), q.size(1), k.size(2), q.size(3)});
  if (v) check_like(op, v, "v", q.dtype(), k.shape());
  check_cache(op, k, static_cast<bool>(v), to);
  if (angles.cos) check_angles(op, q, angles);
  DS_CHECK(!options.inverse, Code::kInvalidArgument, op, ": keys of a cache turn forward only");
  if (k.elements() == 0) return;
  if (to.coded()) {
    Tensor turned = k;
    if (angles.cos) {
      turned = ctx.workspace(k.dtype(), k.shape());
      rotary(ctx, q, angles.position_ids, angles.cos, angles.sin, options, q);
      rotary(ctx, k, angles.position_ids, angles.cos, angles.sin, options, turned);
    }
    if (!ctx.device->computes()) return;
    return with_float_type(q, [&](auto type) {
      append_codes<decltype(type)>(ctx, turned, to, false);
      append_codes<decltype(type)>(ctx, v, to, true);
    });
  }
  with_float_type(q, [&](auto type) {
    using T = decltype(type);
    kernels::RotaryAppend<T> call;
    call.batch = q.size(0);
    call.tokens = q.size(1);
    call.heads = q.size(2);
    call.kv_heads = k.size(2);
    call.head_dim = q.size(3);
    call.interleaved = options.interleaved;
    call.q = view<T>(q);
    call.k = view<const T>(k);
    if (v) call.v = view<const T>(v);
    call.keys = view<T>(to.keys);
    if (v) call.values = view<T>(to.values);
    if (to.blocks) {
      call.keys.blocks = table_of(to.blocks.keys, to.keys.size(1));
      if (v) call.values.blocks = table_of(to.blocks.values, to.keys.size(1));
    }
    call.capacity = to.capacity();
    call.past = to.past;
    if (to.past_memory) call.past_of_each = to.past_memory.data<int32_t>();
    if (angles.cos) {
      call.rotary_dim = 2 * angles.cos.size(1);
      call.positions = angles.position_ids.data<int32_t>();
      call.rows = angles.cos.size(0);
      call.cos = angles.cos.data<float>();
      call.sin = angles.sin.data<float>();
    }
    run(ctx, [&](auto& on) { kernels::rotary_append(call, on); });
  });
}

}  // namespace ds::ops
