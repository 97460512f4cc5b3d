// The iteration on matrices at its limits: one element, none, squares, and what it refuses.
#include "optim/newton_schulz.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "fresh_seed.h"
#include "unit/optim/optim_world.h"

namespace ds::optim {
namespace {

class NewtonSchulz : public ::testing::Test {
 protected:
  Tensor matrix(const Shape& shape) {
    Tensor out = Tensor::zeros(ctx_.device, DType::kFloat32, shape, MemoryTag::kOther);
    std::mt19937_64 random(ds::run_seed());
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < out.elements(); ++i) out.data<float>()[i] = normal(random);
    return out;
  }
  Tensor result(const Shape& shape, MuonMethod method) {
    Tensor out = matrix(shape);
    orthogonalise(ctx_, out, method);
    return out;
  }
  static bool same_bits(const Tensor& a, const Tensor& b) {
    return std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
  }

  ThreadPool pool_{1};
  OpContext ctx_{make_cpu_device(), &pool_};
};

// x / |x|, and then x (a + b x^2 + c x^4) five times.
TEST_F(NewtonSchulz, BringsOneElementToTheValueOfItsPolynomial) {
  double x = 1;
  for (int i = 0; i < 5; ++i) x = x * (3.4445 - 4.7750 * x * x + 2.0315 * std::pow(x, 4));
  for (const MuonMethod method : {MuonMethod::kStandard, MuonMethod::kGram}) {
    for (const float value : {0.25f, -3.0f, 1.0f}) {
      Tensor one = Tensor::zeros(ctx_.device, DType::kFloat32, {1, 1}, MemoryTag::kOther);
      one.data<float>()[0] = value;
      orthogonalise(ctx_, one, method);
      EXPECT_NEAR(one.data<float>()[0], std::copysign(x, value), 1e-5) << value;
    }
  }
}

TEST_F(NewtonSchulz, LeavesNothingAndZerosAsTheyAre) {
  for (const MuonMethod method : {MuonMethod::kStandard, MuonMethod::kGram}) {
    for (const Shape& shape : {Shape{0, 5}, Shape{5, 0}, Shape{0, 0}}) {
      EXPECT_EQ(result(shape, method).shape(), shape);
    }
    for (const Shape& shape : {Shape{3, 3}, Shape{2, 5}, Shape{5, 2}}) {
      Tensor zeros = Tensor::zeros(ctx_.device, DType::kFloat32, shape, MemoryTag::kOther);
      orthogonalise(ctx_, zeros, method);
      for (int64_t i = 0; i < zeros.elements(); ++i) EXPECT_EQ(zeros.data<float>()[i], 0);
    }
  }
}

// The Gram form pays off where a matrix is longer than wide: a square goes the standard way,
// whatever is asked for. The forms differ in rounding only, which amplification by up to 3.4^5
// makes 1e-4.
TEST_F(NewtonSchulz, TakesTheStandardFormForSquaresAlone) {
  SCOPED_TRACE(str_cat("DS_TEST_SEED=", ds::run_seed()));
  for (const Shape& shape : {Shape{24, 24}, Shape{24, 40}, Shape{40, 24}}) {
    const Tensor gram = result(shape, MuonMethod::kGram);
    const Tensor standard = result(shape, MuonMethod::kStandard);
    EXPECT_EQ(same_bits(gram, standard), shape[0] == shape[1]) << shape.text();
    for (int64_t i = 0; i < gram.elements(); ++i) {
      ASSERT_NEAR(gram.data<float>()[i], standard.data<float>()[i], 1e-4) << shape.text();
    }
  }
}

TEST_F(NewtonSchulz, RefusesWhatIsNoContiguousMatrix) {
  const auto code_of = [&](Tensor tensor) {
    try {
      orthogonalise(ctx_, tensor, MuonMethod::kGram);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  };
  EXPECT_EQ(code_of(matrix({6})), Code::kInvalidArgument);
  EXPECT_EQ(code_of(matrix({2, 3, 4})), Code::kInvalidArgument);
  EXPECT_EQ(code_of(matrix({4, 6}).slice(1, 0, 3)), Code::kInvalidArgument);
  EXPECT_EQ(code_of(matrix({4, 6})), Code::kOk);
}

}  // namespace
}  // namespace ds::optim
