// Checks and launches of dropout.
#include "ops/dropout.h"

#include "kernels/dropout/dropout.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

void launch(const OpContext& ctx, const Op& op, const Tensor& x, const Tensor& residual, double p,
            const RandomStream& stream, Tensor& y) {
  DS_CHECK(p >= 0 && p < 1, Code::kInvalidArgument, op, ": the probability must be in [0, 1), not ",
           p);
  DS_CHECK(x.dims() > 0, Code::kInvalidArgument, op, ": x needs a dimension that counts samples");
  const int64_t samples = x.size(0);
  if (samples == 0) return;
  const kernels::DropoutMask mask = kernels::dropout_mask(stream, x.elements() / samples, p);
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
             const RandomStream& stream, Tensor& y) {
  check_dense_float(x, Op{ctx, "dropout"}, "x");
  if (residual) check_dense(residual, Op{ctx, "dropout"}, "residual", x.dtype(), x.shape());
  check_dense(y, Op{ctx, "dropout"}, "y", x.dtype(), x.shape());
  launch(ctx, Op{ctx, "dropout"}, x, residual, p, stream, y);
}

void dropout_backward(const OpContext& ctx, const Tensor& dy, double p, const RandomStream& stream,
                      Tensor& dx) {
  check_dense_float(dy, Op{ctx, "dropout_backward"}, "dy");
  check_dense(dx, Op{ctx, "dropout_backward"}, "dx", dy.dtype(), dy.shape());
  launch(ctx, Op{ctx, "dropout_backward"}, dy, Tensor(), p, stream, dx);
}

}  // namespace ds::ops
