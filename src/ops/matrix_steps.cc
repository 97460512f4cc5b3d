// Checks and launches of the steps between products.
#include "ops/matrix_steps.h"

#include "kernels/optimizer/matrix_steps.h"
#include "ops/checks.h"

namespace ds::ops {

void combine(const OpContext& ctx, float a, const Tensor& x, float b, Tensor& y) {
  const Op op{ctx, "combine"};
  check_dense(y, op, "y", DType::kFloat32);
  check_dense(x, op, "x", DType::kFloat32, y.shape());
  run(ctx, [&](auto& on) {
    kernels::combine(y.elements(), a, x.data<float>(), b, y.data<float>(), on);
  });
}

void divide_by_norm(const OpContext& ctx, const Tensor& squares, double eps, Tensor& y) {
  const Op op{ctx, "divide_by_norm"};
  check_elements(squares, op, "squares", DType::kFloat64, 1);
  check_dense(y, op, "y", DType::kFloat32);
  run(ctx, [&](auto& on) {
    kernels::divide_by_norm(y.elements(), squares.data<double>(), eps, y.data<float>(), on);
  });
}

void add_to_diagonal(const OpContext& ctx, float value, Tensor& y) {
  const Op op{ctx, "add_to_diagonal"};
  check_dense(y, op, "y", DType::kFloat32);
  DS_CHECK(y.dims() == 2 && y.size(0) == y.size(1), Code::kInvalidArgument, op, ": y ",
           y.shape().text(), " must be square");
  run(ctx, [&](auto& on) { kernels::add_to_diagonal(y.size(0), value, y.data<float>(), on); });
}

}  // namespace ds::ops
