#include "optim/newton_schulz.h"

#include <algorithm>

#include "ops/linear.h"
#include "ops/matrix_steps.h"
#include "ops/reduce.h"

namespace ds::optim {
namespace {

constexpr int kIterations = 5;
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr int kRestart = 2;  // the Gram form begins anew before this iteration

// A matrix X seen from its shorter side, so that tall ones need no transposition.
class Iteration {
 public:
  Iteration(const OpContext& ctx, Tensor& x)
      : ctx_(ctx), x_(x), wide_(x.size(0) <= x.size(1)), side_(std::min(x.size(0), x.size(1))) {}

  void standard() {
    Tensor a = square(), b = square(), bx = ctx_.workspace(DType::kFloat32, x_.shape());
    for (int i = 0; i < kIterations; ++i) {
      gram(a);
      product(a, a, b);
      combine(kB, a, kC, b);
      multiply(b, bx);
      combine(1, bx, kA, x_);
    }
  }

  void by_gram() {
    Tensor r = square(), q = square(), z = square(), t = square(), scratch = square();
    Tensor qx = ctx_.workspace(DType::kFloat32, x_.shape());
    for (int i = 0; i < kIterations; ++i) {
      const bool begins = i == 0 || i == kRestart;
      if (i == kRestart) {
        multiply(q, qx);
        copy(qx, x_);
      }
      if (begins) gram(r);
      product(r, r, z);
      combine(kB, r, kC, z);  // z = b r + c r^2
      if (begins) {
        copy(z, q);
        add_to_diagonal(q, kA);
      } else {
        product(z, q, scratch);
        combine(kA, q, 1, scratch);
        std::swap(q, scratch);
      }
      if (i + 1 == kIterations || i + 1 == kRestart) continue;
      product(z, r, t);
      combine(kA, r, 1, t);  // t = a r + z r
      product(z, t, r);
      combine(kA, t, 1, r);  // r = a t + z t
    }
    multiply(q, qx);
    copy(qx, x_);
  }

 private:
  Tensor square() const { return ctx_.workspace(DType::kFloat32, {side_, side_}); }

  // X X^T, or X^T X for a tall matrix.
  void gram(Tensor& out) const {
    if (wide_) return ops::linear(ctx_, x_, x_, Tensor(), out);
    ctx_.device->clear(out.raw(), out.bytes(), ctx_.device->default_stream());
    ops::linear_grad_weight(ctx_, x_, x_, out);
  }
  // left * right; all are polynomials of one symmetric matrix and commute.
  void product(const Tensor& left, const Tensor& right, Tensor& out) const {
    ops::linear_grad_input(ctx_, left, right, out);
  }
  // factor * X, or X * factor for a tall matrix.
  void multiply(const Tensor& factor, Tensor& out) const {
    if (wide_) return ops::linear_grad_input(ctx_, factor, x_, out);
    ops::linear_grad_input(ctx_, x_, factor, out);
  }

  // y = a * x + b * y
  void combine(float a, const Tensor& x, float b, Tensor& y) const {
    ops::combine(ctx_, a, x, b, y);
  }
  void copy(const Tensor& from, Tensor& to) const { ops::combine(ctx_, 1, from, 0, to); }
  void add_to_diagonal(Tensor& tensor, float value) const {
    ops::add_to_diagonal(ctx_, value, tensor);
  }

  const OpContext& ctx_;
  Tensor& x_;
  bool wide_;
  int64_t side_;

 public:
  void normalise() {
    Tensor squares = ctx_.workspace(DType::kFloat64, {1});
    ops::sum_squares(ctx_, x_, squares);
    ops::divide_by_norm(ctx_, squares, 1e-7, x_);
  }
};

}  // namespace

void orthogonalise(const OpContext& ctx, Tensor& matrix, MuonMethod method) {
  check_tensor(matrix, "matrix", DType::kFloat32, matrix.shape());
  DS_CHECK(matrix.dims() == 2 && matrix.contiguous(), Code::kInvalidArgument,
           "orthogonalise: needs a contiguous matrix, not shape ", matrix.shape().text());
  if (matrix.elements() == 0) return;
  Iteration iteration(ctx, matrix);
  iteration.normalise();
  if (method == MuonMethod::kStandard || matrix.size(0) == matrix.size(1)) {
    iteration.standard();
  } else {
    iteration.by_gram();
  }
}

}  // namespace ds::optim
