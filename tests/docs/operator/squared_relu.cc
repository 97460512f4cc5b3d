// The operator that docs/add-an-operator.md shows, step 4; backward is written like it.
#include "docs/operator/squared_relu.h"

#include "kernels/activation/squared_relu.h"
#include "ops/checks.h"

namespace ds::ops {

#include "page/operator.inc"

void squared_relu_backward(const OpContext& ctx, const Tensor& x, const Tensor& dy, Tensor& dx) {
  const Op op{ctx, "squared_relu_backward"};
  check_dense_float(x, op, "x");
  check_dense(dy, op, "dy", x.dtype(), x.shape());
  check_dense(dx, op, "dx", x.dtype(), x.shape());
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    kernels::squared_relu_backward(x.data<T>(), dy.data<T>(), x.elements(), dx.data<T>(),
                                   *ctx.pool);
  });
}

}  // namespace ds::ops
