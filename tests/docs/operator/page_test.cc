// docs/add-an-operator.md: the code that it shows compiles, and makes an operator that gives what
// its reference gives, has the right gradient, refuses what it should and trains through its layer.
#include <gtest/gtest.h>

#include "docs/operator/squared_relu.h"
#include "fresh_seed.h"
#include "kernels/activation/squared_relu.h"
#include "kernels/case_util.h"
#include "nn/tape.h"

namespace ds::testing {
namespace {
#include "page/row.inc"
}  // namespace
}  // namespace ds::testing

namespace ds::nn {
namespace {
#include "page/layer.inc"
}  // namespace
}  // namespace ds::nn

namespace ds::testing {
namespace {

// A tape needs one, also where nothing has parameters.
class NoParameters : public nn::ParameterReader, public nn::GradientSink {
 public:
  Tensor acquire(nn::ParamId) override { return {}; }
  void release(nn::ParamId) noexcept override {}
  Tensor gradient(nn::ParamId) override { return {}; }
  nn::GradientTarget gradient_target(nn::ParamId) override { return {}; }
  void gradient_complete(nn::ParamId) override {}
  DType compute_type() const override { return DType::kFloat32; }
  const nn::ParameterSet& parameters() const override { return parameters_; }

 private:
  nn::ParameterSet parameters_;
};

class OperatorPage : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  const OpContext ctx_{make_cpu_device(), &pool_};
};

TEST_F(OperatorPage, RowPasses) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : {0, 1, 15, 17, 40000}) {
      const OpCase row = squared_relu_case(dtype, n);
      const CaseResult result = row.check(ctx_, ds::fresh_seed());
      EXPECT_LE(result.worst, 1) << row.name << ": " << result.where;
    }
  }
}

TEST_F(OperatorPage, OperatorRefusesWhatDoesNotFit) {
  const Tensor x = filled_tensor(DType::kFloat32, {3}, 1);
  Tensor shorter = guarded_tensor(DType::kFloat32, {2});
  EXPECT_THROW(ops::squared_relu(ctx_, x, shorter), Error);
  Tensor other = guarded_tensor(DType::kBFloat16, {3});
  EXPECT_THROW(ops::squared_relu(ctx_, x, other), Error);
}

TEST_F(OperatorPage, LayerHasTheGradientOfTheReference) {
  Random random(ds::fresh_seed());
  NoParameters store;
  nn::Tape tape(ctx_, store, &store, {});
  const nn::Value x = tape.make_value(random_tensor(random, DType::kFloat32, {33}));
  const nn::Value y = nn::squared_relu(tape, x);
  const Tensor dy = random_tensor(random, DType::kFloat32, {33});
  const std::vector<double> at = doubles(x.data), weights = doubles(dy);
  y.slot->add(ctx_, dy, true);
  tape.backward();
  CaseResult result;
  compare_gradient(
      result, "dx", x.slot->gradient(), at,
      [&](const std::vector<double>& v) {
        std::vector<double> out(v.size());
        kernels::reference::squared_relu(v.data(), 33, out.data());
        return weighted_sum(weights, out);
      },
      {1e-5, 0});  // the second derivative jumps at 0, where differences are off by a step's size
  EXPECT_LE(result.worst, 1) << result.where;
}

}  // namespace
}  // namespace ds::testing
