// Operators on tensors of ds.h: quantisation by groups, softmax of scores, heads apart and
// together.
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/host_call.h"
#include "ops/group_quantize.h"
#include "ops/heads.h"
#include "ops/softmax.h"

namespace ds::capi {
namespace {

// What is computed with here before operators check the rest.
kernels::GroupFormat format_of(int32_t bits, int64_t group_size, bool minima) {
  DS_CHECK(bits == 8 || bits == 4, Code::kInvalidArgument, "bits is ", bits, "; 8 or 4 is needed");
  constexpr int64_t kLargestGroup = int64_t{1} << 40;
  DS_CHECK(group_size >= 2 && group_size <= kLargestGroup && group_size % 2 == 0,
           Code::kInvalidArgument, "group_size is ", group_size,
           "; an even number from 2 to 2^40 is needed");
  return {bits, group_size, minima};
}

std::optional<RandomStream> random_of(int64_t seed) {
  DS_CHECK(seed >= -1, Code::kInvalidArgument, "seed is ", seed,
           "; 0 or more is needed, or -1 for rounding to the nearest");
  if (seed < 0) return std::nullopt;
  return RandomStream{.seed = static_cast<uint64_t>(seed)};
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_tensor_quantize_groups(const ds_tensor* tensor, int32_t bits, int64_t group_size,
                                    ds_bool asymmetric, int64_t seed, ds_tensor** out_codes,
                                    ds_tensor** out_scales) {
  return guard(__func__, [&] {
    const auto object = enter(tensor, "tensor", Entry::kShared);
    ds_tensor*& codes_out = out_param(out_codes, "out_codes");
    ds_tensor*& scales_out = out_param(out_scales, "out_scales");
    const kernels::GroupFormat format = format_of(bits, group_size, asymmetric != 0);
    const std::optional<RandomStream> random = random_of(seed);
    const Tensor& x = float_tensor(*object, "tensor");
    const HostCall call;
    Tensor codes = call.empty(DType::kUInt8, {format.code_bytes(x.elements())});
    Tensor scales = call.empty(DType::kFloat32, ops::group_scales_shape(format, x.elements()));
    ops::quantize_groups(call.ctx(), x, format, random, codes, scales);
    ReservedTensor first, second;
    codes_out = first.give(std::move(codes));
    scales_out = second.give(std::move(scales));
  });
}

ds_status ds_tensor_dequantize_groups(const ds_tensor* codes, const ds_tensor* scales, int32_t bits,
                                      int64_t group_size, ds_tensor* output) {
  return guard(__func__, [&] {
    const auto given = enter(codes, "codes", Entry::kShared);
    const auto factors = enter(scales, "scales", Entry::kShared);
    const auto target = enter(output, "output");
    const Tensor& s = host_tensor(*factors, "scales");
    const kernels::GroupFormat format = format_of(bits, group_size, s.dims() == 2);
    Tensor y = float_tensor(*target, "output");
    DS_CHECK(!y.storage()->read_only(), Code::kState, "output is read-only");
    const HostCall call;
    ops::dequantize_groups(call.ctx(), host_tensor(*given, "codes"), s, format, y);
  });
}

ds_status ds_tensor_fake_quantize(const ds_tensor* tensor, int32_t bits, int64_t group_size,
                                  ds_bool asymmetric, int64_t seed, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(tensor, "tensor", Entry::kShared);
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const kernels::GroupFormat format = format_of(bits, group_size, asymmetric != 0);
    const std::optional<RandomStream> random = random_of(seed);
    const Tensor& x = float_tensor(*object, "tensor");
    const HostCall call;
    Tensor y = call.empty(x.dtype(), x.shape());
    ops::fake_quantize_groups(call.ctx(), x, format, random, y);
    out = publish_tensor(std::move(y));
  });
}

ds_status ds_tensor_softmax(const ds_tensor* scores, const ds_tensor* mask, double scale,
                            ds_bool causal, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(scores, "scores", Entry::kShared);
    const MaybeTensor hides(mask, "mask");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const Tensor& x = float_tensor(*object, "scores");
    const HostCall call;
    Tensor y = call.empty(x.dtype(), x.shape());
    ops::softmax(call.ctx(), x, *hides, {static_cast<float>(scale), causal != 0}, y);
    out = publish_tensor(std::move(y));
  });
}

ds_status ds_tensor_softmax_backward(const ds_tensor* softmax, const ds_tensor* gradient,
                                     double scale, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(softmax, "softmax", Entry::kShared);
    const auto given = enter(gradient, "gradient", Entry::kShared);
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const Tensor& y = float_tensor(*object, "softmax");
    const HostCall call;
    Tensor dx = call.empty(y.dtype(), y.shape());
    ops::softmax_backward(call.ctx(), y, float_tensor(*given, "gradient"),
                          static_cast<float>(scale), dx);
    out = publish_tensor(std::move(dx));
  });
}

ds_status ds_tensor_split_heads(const ds_tensor* packed, const ds_tensor* bias, int32_t parts,
                                int32_t heads, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(packed, "packed", Entry::kShared);
    const MaybeTensor added(bias, "bias");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const Tensor& x = float_tensor(*object, "packed");
    DS_CHECK(x.dims() == 3, Code::kInvalidArgument, "packed has shape ", x.shape().text(),
             "; [batch, tokens, parts * heads * size] is needed");
    DS_CHECK(parts >= 1 && heads >= 1, Code::kInvalidArgument, "parts is ", parts, " and heads is ",
             heads, "; 1 or more are needed");
    const int64_t columns = x.size(2), slices = int64_t{parts} * heads;
    DS_CHECK(columns % slices == 0, Code::kInvalidArgument, "packed has ", columns,
             " columns, which ", parts, " parts of ", heads, " heads do not divide");
    const HostCall call;
    Tensor y = call.empty(x.dtype(), {parts, x.size(0), heads, x.size(1), columns / slices});
    ops::split_heads(call.ctx(), x, *added, y);
    out = publish_tensor(std::move(y));
  });
}

ds_status ds_tensor_merge_heads(const ds_tensor* split, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(split, "split", Entry::kShared);
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const Tensor& y = float_tensor(*object, "split");
    DS_CHECK(y.dims() == 5, Code::kInvalidArgument, "split has shape ", y.shape().text(),
             "; [parts, batch, heads, tokens, size] is needed");
    const HostCall call;
    Tensor x = call.empty(y.dtype(), {y.size(1), y.size(3), y.size(0) * y.size(2) * y.size(4)});
    ops::merge_heads(call.ctx(), y, x);
    out = publish_tensor(std::move(x));
  });
}
