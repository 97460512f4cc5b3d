// Checks and launches of dropout.
#include "ops/dropout.h"

#include "kernels/dropout/dropout.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

void launch(const OpContext& ctx, const Op& op, const Tensor& x, const Tensor& residual, double p,
            const RandomStream& stream, int64_t first_element, Tensor& y) {
  DS_CHECK(p >= 0 && p < 1, Code::kInvalidArgument, op, ": the probability must be in [0, 1), not ",
           p);
  DS_CHECK(first_element >= 0, Code::kInvalidArgument, op,
           ": first_element is negative: ", first_element);
  const kernels::DropoutMask mask =
      kernels::dropout_mask(stream, static_cast<uint64_t>(first_element), p);
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    run(ctx, [&](auto& on) {
      kernels::dropout(mask, x.data<T>(), residual ? residual.data<T>() : nullptr, x.elements(),
                       y.data<T>(), on);
    });
  });
}

}  // namespace

void dropout(const OpContext& ctx, const Tensor& x, const Tensor& residual, double p,
             const RandomStream& stream, int64_t first_element, Tensor& y) {
  check_dense_float(x, Op{ctx, "dropout"}, "x");
  if (residual) check_dense(residual, Op{ctx, "dropout"}, "residual", x.dtype(), x.shape());
  check_dense(y, Op{ctx, "dropout"}, "y", x.dtype(), x.shape());
  launch(ctx, Op{ctx, "dropout"}, x, residual, p, stream, first_element, y);
}

void dropout_backward(const OpContext& ctx, const Tensor& dy, double p, const RandomStream& stream,
                      int64_t first_element, Tensor& dx) {
  check_dense_float(dy, Op{ctx, "dropout_backward"}, "dy");
  check_dense(dx, Op{ctx, "dropout_backward"}, "dx", dy.dtype(), dy.shape());
  launch(ctx, Op{ctx, "dropout_backward"}, dy, Tensor(), p, stream, first_element, dx);
}

}  // namespace ds::ops
