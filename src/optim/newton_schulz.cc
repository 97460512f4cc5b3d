#include "optim/newton_schulz.h"

#include <cmath>

#include "ops/linear.h"
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
      combine(kA, x_, 1, bx);
      copy(bx, x_);
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
  static constexpr int64_t kGrain = int64_t{1} << 15;

  Tensor square() const { return ctx_.workspace(DType::kFloat32, {side_, side_}); }

  // X X^T, or X^T X for a tall matrix.
  void gram(Tensor& out) const {
    if (wide_) return ops::linear(ctx_, x_, x_, Tensor(), out);
    scale(0, out);
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

  template <class Fn>
  void for_elements(const Tensor& like, const Fn& fn) const {
    ctx_.pool->for_range(like.elements(), kGrain, fn);
  }
  // y = a * x + b * y
  void combine(float a, const Tensor& x, float b, Tensor& y) const {
    const float* from = x.data<float>();
    float* to = y.data<float>();
    for_elements(y, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = a * from[i] + b * to[i];
    });
  }
  void copy(const Tensor& from_tensor, Tensor& to_tensor) const {
    const float* from = from_tensor.data<float>();
    float* to = to_tensor.data<float>();
    for_elements(to_tensor, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i];
    });
  }
  void scale(float factor, Tensor& tensor) const {
    float* to = tensor.data<float>();
    for_elements(tensor, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = factor == 0 ? 0 : to[i] * factor;
    });
  }
  void add_to_diagonal(Tensor& tensor, float value) const {
    float* to = tensor.data<float>();
    for (int64_t i = 0; i < side_; ++i) to[i * side_ + i] += value;
  }

  const OpContext& ctx_;
  Tensor& x_;
  bool wide_;
  int64_t side_;

 public:
  void normalise() {
    const double norm = std::sqrt(ops::sum_squares(ctx_, x_));
    scale(static_cast<float>(1 / (norm + 1e-7)), x_);
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
