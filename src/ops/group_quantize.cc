// Checks and launch of quantisation by groups.
#include "ops/group_quantize.h"

#include "ops/checks.h"

namespace ds::ops {
namespace {

void check_format(const Op& op, const GroupFormat& format) {
  check_on_cpu(op);
  DS_CHECK(format.bits == 8 || format.bits == 4, Code::kInvalidArgument, op,
           ": codes have 8 or 4 bits, not ", format.bits);
  DS_CHECK(format.group >= 2 && format.group % 2 == 0, Code::kInvalidArgument, op, ": a group has ",
           format.group, " elements; an even number is needed");
}

kernels::GroupInput input_of(const Tensor& x, const std::optional<RandomStream>& random) {
  return {float_type(x), x.raw(), x.elements(), random ? &*random : nullptr};
}

kernels::GroupCodes codes_of(const Op& op, const GroupFormat& format, int64_t elements,
                             const Tensor& codes, const Tensor& scales) {
  check_dense(codes, op, "codes", DType::kUInt8, {format.code_bytes(elements)});
  check_dense(scales, op, "scales", DType::kFloat32, group_scales_shape(format, elements));
  auto* const first = scales.data<float>();
  return {codes.data<uint8_t>(), first, format.minima ? first + format.groups(elements) : nullptr};
}

}  // namespace

Shape group_scales_shape(const GroupFormat& format, int64_t elements) {
  const int64_t groups = format.groups(elements);
  return format.minima ? Shape{2, groups} : Shape{groups};
}

void quantize_groups(const OpContext& ctx, const Tensor& x, const GroupFormat& format,
                     const std::optional<RandomStream>& random, Tensor& codes, Tensor& scales) {
  const Op op{ctx, "quantize_groups"};
  check_format(op, format);
  check_dense_float(x, op, "x");
  const kernels::GroupCodes out = codes_of(op, format, x.elements(), codes, scales);
  kernels::quantize_groups(format, input_of(x, random), out, *ctx.pool);
}

void dequantize_groups(const OpContext& ctx, const Tensor& codes, const Tensor& scales,
                       const GroupFormat& format, Tensor& y) {
  const Op op{ctx, "dequantize_groups"};
  check_format(op, format);
  check_dense_float(y, op, "y");
  const kernels::GroupCodes in = codes_of(op, format, y.elements(), codes, scales);
  kernels::dequantize_groups(format, in, y.elements(), float_type(y), y.raw(), *ctx.pool);
}

void fake_quantize_groups(const OpContext& ctx, const Tensor& x, const GroupFormat& format,
                          const std::optional<RandomStream>& random, Tensor& y) {
  const Op op{ctx, "fake_quantize_groups"};
  check_format(op, format);
  check_dense_float(x, op, "x");
  check_dense(y, op, "y", x.dtype(), x.shape());
  kernels::fake_quantize_groups(format, input_of(x, random), y.raw(), *ctx.pool);
}

}  // namespace ds::ops
