// Numbers in a GPU's memory that point outside a table: kernels, which cannot refuse them, neither
// read nor write there, and let them show as NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cuda/gpu_memory.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/rotary.h"

namespace ds::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;

class GpuGuards : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    ctx_.device = make_cuda_device(0);
    ctx_.pool = &pool_;
    use_memory_of(std::static_pointer_cast<CudaDevice>(ctx_.device));
  }
  void TearDown() override { case_memory() = CaseMemory(); }

  static Tensor ids(const std::vector<double>& values) {
    return tensor_of(DType::kInt32, {static_cast<int64_t>(values.size())}, values);
  }
  // Row i of a matrix is NaN throughout where `broken` says so, and otherwise holds none.
  static void expect_broken_rows(const Tensor& y, const std::vector<bool>& broken) {
    const std::vector<double> values = doubles(y);
    const size_t cols = values.size() / broken.size();
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(std::isnan(values[i]), broken[i / cols]) << "element " << i;
    }
    EXPECT_TRUE(guards_intact(y));
  }

  ThreadPool pool_{1};
  OpContext ctx_;
};

TEST_F(GpuGuards, IdsOutsideTheTableMakeRowsOfNan) {
  const Tensor table = filled_tensor(kF32, {5, 4}, 3);
  Tensor y = guarded_tensor(kF32, {5, 4});
  ops::embedding(ctx_, ids({0, -1, 4, 5, 2147483647}), table, {}, {}, y);
  expect_broken_rows(y, {false, true, false, true, true});
  ops::embedding(ctx_, ids({0, 1, 4, 2, 3}), table, ids({4, 5, 0, -2147483648.0, 1}), table, y);
  expect_broken_rows(y, {false, true, false, true, false});
  EXPECT_EQ(doubles(y)[0], 6);
}

TEST_F(GpuGuards, IdsOutsideTheTableHaveNoGradient) {
  for (const int64_t rows : {5, 255, 256, 70000}) {
    Tensor dtable = filled_tensor(kF32, {rows, 2}, 0);
    const auto last = static_cast<double>(rows - 1);
    const Tensor bad = ids({0, -1, last, last + 1, 2147483647, last, -2147483648.0});
    ops::embedding_backward(ctx_, bad, filled_tensor(kF32, {7, 2}, 1), dtable);
    std::vector<double> expected(static_cast<size_t>(rows * 2), 0);
    expected[0] = expected[1] = 1;
    expected[expected.size() - 2] = expected[expected.size() - 1] = 2;
    EXPECT_EQ(doubles(dtable), expected) << rows << " rows";
    EXPECT_TRUE(guards_intact(dtable));
  }
}

TEST_F(GpuGuards, PositionsOutsideTheTablesMakeNanOfWhatTurns) {
  const Tensor x = filled_tensor(kF32, {1, 4, 3, 6}, 1), cos = filled_tensor(kF32, {5, 3}, 0.5);
  const Tensor positions = tensor_of(DType::kInt32, {1, 4}, std::vector<double>{4, 5, -1, 0});
  Tensor y = guarded_tensor(kF32, {1, 4, 3, 6});
  ops::rotary(ctx_, x, positions, cos, cos, {}, y);
  expect_broken_rows(y, {false, true, true, false});
}

TEST_F(GpuGuards, LabelsOutsideTheRowMakeNanOfLossAndGradient) {
  const std::vector<bool> broken{false, true, true, false, false};
  const Tensor labels = ids({9, 10, 2147483647, 0, ops::kIgnoreLabel});
  const auto logits = [] { return filled_tensor(kF32, {5, 10}, 0.25); };
  Tensor loss = guarded_tensor(kF32, {5}), lse = guarded_tensor(kF32, {5}), dlogits = logits();
  ops::cross_entropy(ctx_, dlogits, labels, 10, loss, lse);
  expect_broken_rows(loss, broken);
  ops::cross_entropy_backward(ctx_, dlogits, labels, 10, lse, 1, dlogits);
  expect_broken_rows(dlogits, broken);
  dlogits = logits();
  loss = guarded_tensor(kF32, {5});
  ops::cross_entropy_fused(ctx_, dlogits, labels, 10, 1, loss);
  expect_broken_rows(loss, broken);
  expect_broken_rows(dlogits, broken);
  EXPECT_NEAR(doubles(loss)[0], std::log(10), 1e-6);
}

}  // namespace
}  // namespace ds::testing
