// Checks and launch of the permutation of heads.
#include "ops/heads.h"

#include "kernels/transform/heads.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

// What `split` [P, B, H, T, D] and `packed` [B, T, P * H * D] say together.
kernels::HeadShape shape_of(const Op& op, const Tensor& split, const Tensor& packed) {
  check_on_cpu(op);
  check_dense_float(split, op, "the split tensor");
  check_dense(packed, op, "the packed tensor", split.dtype());
  DS_CHECK(split.dims() == 5, Code::kInvalidArgument, op, ": the split tensor has shape ",
           split.shape().text(), "; [parts, batch, heads, tokens, size] is needed");
  kernels::HeadShape shape;
  shape.type = float_type(split);
  shape.parts = split.size(0);
  shape.batch = split.size(1);
  shape.heads = split.size(2);
  shape.tokens = split.size(3);
  shape.size = split.size(4);
  const Shape expected{shape.batch, shape.tokens, shape.columns()};
  DS_CHECK(packed.shape() == expected, Code::kInvalidArgument, op, ": the packed tensor has shape ",
           packed.shape().text(), "; for a split one of shape ", split.shape().text(), " ",
           expected.text(), " is needed");
  return shape;
}

}  // namespace

void split_heads(const OpContext& ctx, const Tensor& x, const Tensor& bias, Tensor& y) {
  const Op op{ctx, "split_heads"};
  const kernels::HeadShape shape = shape_of(op, y, x);
  if (bias) check_dense(bias, op, "bias", x.dtype(), {shape.columns()});
  kernels::split_heads(shape, x.raw(), bias ? bias.raw() : nullptr, y.raw(), *ctx.pool);
}

void merge_heads(const OpContext& ctx, const Tensor& y, Tensor& x) {
  const kernels::HeadShape shape = shape_of(Op{ctx, "merge_heads"}, y, x);
  kernels::merge_heads(shape, y.raw(), x.raw(), *ctx.pool);
}

}  // namespace ds::ops
