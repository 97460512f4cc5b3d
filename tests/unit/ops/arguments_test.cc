// Operators refuse what does not fit, by name, before they touch any output.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ops/dropout.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/optimizer_update.h"
#include "ops/reduce.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

using testing::expect_error;

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16;

class Arguments : public ::testing::Test {
 protected:
  Tensor zeros(DType dtype, const Shape& shape) {
    return Tensor::zeros(device_, dtype, shape, MemoryTag::kOther);
  }
  Tensor ids(const std::vector<int32_t>& values) {
    Tensor t = zeros(DType::kInt32, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), t.data<int32_t>());
    return t;
  }
  void refused(const std::vector<std::string>& parts, const std::function<void()>& call) {
    expect_error(Code::kInvalidArgument, parts, call);
  }

  std::shared_ptr<Device> device_ = make_cpu_device();
  ThreadPool pool_{2};
  OpContext ctx_{device_, &pool_};
  Tensor none_;
};

// Products write to, and read from, columns of a larger matrix.
TEST_F(Arguments, LinearTakesColumns) {
  Tensor x = zeros(kF32, {2, 3, 5}), w = zeros(kF32, {4, 5}), all = zeros(kF32, {2, 3, 9});
  for (int64_t i = 0; i < x.elements(); ++i) x.data<float>()[i] = 0.25f * float(i % 7) - 0.5f;
  for (int64_t i = 0; i < w.elements(); ++i) w.data<float>()[i] = 0.125f * float(i % 11) - 0.5f;
  for (int64_t i = 0; i < all.elements(); ++i) all.data<float>()[i] = float(i);
  Tensor dense = zeros(kF32, {2, 3, 4}), columns = all.slice(2, 3, 7);
  ops::linear(ctx_, x, w, none_, dense);
  ops::linear(ctx_, x, w, none_, columns);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 9; ++j) {
      const float expected =
          j < 3 || j >= 7 ? float(i * 9 + j) : dense.data<float>()[i * 4 + j - 3];
      EXPECT_EQ(all.data<float>()[i * 9 + j], expected) << i << ", " << j;
    }
  }
  Tensor dx = zeros(kF32, {2, 3, 5}), dx_dense = zeros(kF32, {2, 3, 5});
  ops::linear_grad_input(ctx_, columns, w, dx);
  ops::linear_grad_input(ctx_, dense, w, dx_dense);
  Tensor dw = zeros(kF32, {4, 5}), dw_dense = zeros(kF32, {4, 5});
  ops::linear_grad_weight(ctx_, columns, x, dw);
  ops::linear_grad_weight(ctx_, dense, x, dw_dense);
  for (int64_t i = 0; i < dx.elements(); ++i) {
    EXPECT_EQ(dx.data<float>()[i], dx_dense.data<float>()[i]);
  }
  for (int64_t i = 0; i < dw.elements(); ++i) {
    EXPECT_EQ(dw.data<float>()[i], dw_dense.data<float>()[i]);
  }
  Tensor odd = zeros(kF32, {2, 4, 4}).slice(1, 0, 3);
  refused({"linear: y of shape [2, 3, 4] must be contiguous, or columns of a contiguous matrix"},
          [&] { ops::linear(ctx_, x, w, none_, odd); });
}

TEST_F(Arguments, Elementwise) {
  Tensor a = zeros(kF32, {2, 3}), b = zeros(kBf16, {2, 3}), c = zeros(kF32, {3, 2});
  Tensor i = zeros(DType::kInt32, {2, 3});
  refused({"add: b must be float32, not bfloat16"}, [&] { ops::add(ctx_, a, b, a); });
  refused({"add: y must have shape [2, 3], not [3, 2]"}, [&] { ops::add(ctx_, a, a, c); });
  refused({"add: a is missing"}, [&] { ops::add(ctx_, none_, a, a); });
  refused({"add: b is missing"}, [&] { ops::add(ctx_, a, none_, a); });
  refused({"scale: x must be float32, bfloat16 or float16, not int32"},
          [&] { ops::scale(ctx_, i, 1, i); });
  refused({"fill: y is missing"}, [&] { ops::fill(ctx_, 1, none_); });
  Tensor columns = zeros(kF32, {2, 6}).slice(1, 0, 3);
  refused({"scale: x of shape [2, 3] must be contiguous"},
          [&] { ops::scale(ctx_, columns, 1, a); });
  refused({"cast: y of shape [2, 3] must be contiguous"}, [&] { ops::cast(ctx_, a, columns); });
  refused({"cast: y must have shape [2, 3], not [3, 2]"}, [&] { ops::cast(ctx_, a, c); });
  refused({"accumulate: sum must be float32, bfloat16 or float16, not int32"},
          [&] { ops::accumulate(ctx_, a, i); });
  refused({"accumulate: sum must have shape [2, 3], not [3, 2]"},
          [&] { ops::accumulate(ctx_, a, 2.0f, c); });
}

TEST_F(Arguments, MemoryOfOtherDevices) {
  float memory[4] = {};
  Tensor far(std::make_shared<Storage>(DeviceKind::kCuda, 0, memory, 16, false, nullptr), 0, kF32,
             {4});
  expect_error(Code::kInvalidArgument, {"scale: x is not in the memory of cpu"},
               [&] { ops::scale(ctx_, far, 1, far); });
  Tensor near = zeros(kF32, {4});
  expect_error(Code::kInvalidArgument, {"cast: x is not in the memory of cpu"},
               [&] { ops::cast(ctx_, far, near); });
}

TEST_F(Arguments, Reductions) {
  Tensor x = zeros(kF32, {2, 3}), scalar = zeros(kF32, {}), y = zeros(kF32, {2});
  refused({"sum_squares: x must be float32, bfloat16 or float16"},
          [&] { ops::sum_squares(ctx_, zeros(DType::kInt64, {2})); });
  refused({"max_abs: x is missing"}, [&] { ops::max_abs(ctx_, none_); });
  refused({"add_column_sums: y must have 3 elements, not shape [2]"},
          [&] { ops::add_column_sums(ctx_, x, y); });
  refused({"add_column_sums: x has no dimensions"}, [&] { ops::add_column_sums(ctx_, scalar, y); });
  // Nothing to reduce.
  const Tensor empty = zeros(kF32, {0});
  EXPECT_EQ(ops::sum(ctx_, empty), 0);
  EXPECT_EQ(ops::max_abs(ctx_, empty), 0);
  EXPECT_EQ(ops::first_non_finite(ctx_, empty), -1);
  ops::add_column_sums(ctx_, zeros(kF32, {0, 2}), y);
}

TEST_F(Arguments, LayerNorm) {
  Tensor x = zeros(kF32, {4, 8}), y = zeros(kF32, {4, 8}), sum = zeros(kF32, {4, 8});
  Tensor gamma = zeros(kF32, {8}), beta = zeros(kF32, {8});
  Tensor mean = zeros(kF32, {4}), rstd = zeros(kF32, {4}), wide = zeros(kF32, {0, 0});
  const auto call = [&](const Tensor& in, const Tensor& residual, const Tensor& g, float eps,
                        Tensor& s, Tensor& m) {
    ops::layer_norm(ctx_, {.x = in, .residual = residual, .gamma = g, .beta = beta, .eps = eps},
                    {.y = y, .sum = s, .mean = m, .rstd = rstd});
  };
  EXPECT_NO_THROW(call(x, none_, gamma, 1e-5f, sum, mean));
  refused({"layer_norm: gamma must be float32, not bfloat16"},
          [&] { call(x, none_, zeros(kBf16, {8}), 1e-5f, sum, mean); });
  refused({"layer_norm: gamma must have 8 elements"},
          [&] { call(x, none_, zeros(kF32, {7}), 1e-5f, sum, mean); });
  refused({"layer_norm: mean must have 4 elements"},
          [&] { call(x, none_, gamma, 1e-5f, sum, gamma); });
  refused({"with a residual, sum must be given"}, [&] { call(x, x, gamma, 1e-5f, none_, mean); });
  refused({"residual must have shape [4, 8]"}, [&] {
    call(x, zeros(kF32, {8, 4}), gamma, 1e-5f, sum, mean);
  });
  for (const float eps :
       {-1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    refused({"eps must be finite"}, [&] { call(x, none_, gamma, eps, sum, mean); });
  }
  refused({"no elements to normalise over"}, [&] { call(wide, none_, gamma, 0, sum, mean); });
  Tensor dgamma = zeros(kBf16, {8});
  const ops::NormBackwardInputs back{
      .dy = y, .sum = sum, .gamma = gamma, .mean = mean, .rstd = rstd};
  refused({"layer_norm_backward: dgamma must be float32"}, [&] {
    ops::layer_norm_backward(ctx_, back, {.dx = x, .dgamma = dgamma, .dbeta = beta});
  });
  // What only one of the two has.
  refused({"layer_norm: beta is missing"}, [&] {
    ops::layer_norm(ctx_, {.x = x, .gamma = gamma}, {.y = y, .mean = mean, .rstd = rstd});
  });
  refused({"rms_norm: there is no beta in RMS normalisation"}, [&] {
    ops::rms_norm(ctx_, {.x = x, .gamma = gamma, .beta = beta}, {.y = y, .rstd = rstd});
  });
  refused({"rms_norm_backward: there is no mean in RMS normalisation"},
          [&] { ops::rms_norm_backward(ctx_, back, {.dx = x, .dgamma = gamma}); });
}

TEST_F(Arguments, EmbeddingNamesTheBadIdAndWritesNothing) {
  Tensor table = zeros(kF32, {5, 4}), y = zeros(kF32, {3, 4});
  ops::fill(ctx_, 7, y);
  for (const int32_t bad : {5, -1, INT32_MAX, INT32_MIN}) {
    refused({"embedding: ids[2] is " + std::to_string(bad), "table of 5 rows"}, [&] {
      ops::embedding(ctx_, ids({0, 4, bad}), table, {}, {}, y);
    });
    refused({"embedding: position_ids[0] is " + std::to_string(bad)}, [&] {
      ops::embedding(ctx_, ids({0, 1, 2}), table, ids({bad, 0, 0}), table, y);
    });
    Tensor dtable = zeros(kF32, {5, 4});
    refused({"embedding_backward: ids[1]"}, [&] {
      ops::embedding_backward(ctx_, ids({0, bad, 1}), y, dtable);
    });
    EXPECT_EQ(ops::sum(ctx_, dtable), 0);
  }
  EXPECT_EQ(ops::sum(ctx_, y), 7 * 12);
  refused({"positions and position_ids must be given together"}, [&] {
    ops::embedding(ctx_, ids({0, 1, 2}), table, {}, table, y);
  });
  refused({"y of shape [3, 4] must hold a row of 4 for each of 2 ids"}, [&] {
    ops::embedding(ctx_, ids({0, 1}), table, {}, {}, y);
  });
  refused({"ids must be int32"},
          [&] { ops::embedding(ctx_, zeros(DType::kInt64, {3}), table, {}, {}, y); });
  refused({"table must have two dimensions"},
          [&] { ops::embedding(ctx_, ids({0}), zeros(kF32, {4}), {}, {}, y); });
  refused({"positions must have shape [2, 4], not [2, 3]"}, [&] {
    ops::embedding(ctx_, ids({0, 1, 2}), table, ids({0, 0, 0}), zeros(kF32, {2, 3}), y);
  });
  Tensor empty_table = zeros(kF32, {0, 4});
  refused({"table of 0 rows"}, [&] {
    ops::embedding(ctx_, ids({0, 0, 0}), empty_table, {}, {}, y);
  });
}

TEST_F(Arguments, Dropout) {
  Tensor x = zeros(kF32, {4}), y = zeros(kF32, {4}), other = zeros(kF32, {5});
  for (const double p : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    refused({"dropout: the probability must be in [0, 1)"},
            [&] { ops::dropout(ctx_, x, {}, p, {}, y); });
    refused({"dropout_backward: the probability"},
            [&] { ops::dropout_backward(ctx_, x, p, {}, y); });
  }
  Tensor number = zeros(kF32, {});
  refused({"dropout: x needs a dimension that counts samples"},
          [&] { ops::dropout(ctx_, number, {}, 0.5, {}, number); });
  refused({"dropout: residual must have shape [4]"},
          [&] { ops::dropout(ctx_, x, other, 0.5, {}, y); });
  refused({"dropout_backward: dx must have shape [4]"},
          [&] { ops::dropout_backward(ctx_, x, 0.5, {}, other); });
}

TEST_F(Arguments, OptimizerUpdate) {
  const std::vector<kernels::UpdatePiece> pieces = {{0, 4, 0}};
  const std::vector<int64_t> first = {0, 1};
  const auto run = [&](ops::UpdateTensors tensors, const kernels::UpdateHyper& hyper = {},
                       const std::vector<kernels::UpdatePiece>& own_pieces = {}) {
    return [=, this]() mutable {
      constexpr auto kRule = kernels::UpdateRule::kAdam;
      const std::vector<kernels::UpdateConstants> constants = {
          kernels::update_constants(kRule, hyper)};
      const auto& used = own_pieces.empty() ? pieces : own_pieces;
      ops::optimizer_update(ctx_, kRule, {constants, used, first}, tensors);
    };
  };
  const auto good = [&] {
    ops::UpdateTensors tensors;
    tensors.master = zeros(kF32, {4});
    tensors.grad = zeros(kF32, {4});
    for (ops::StateTensor& state : tensors.states) state.data = zeros(kF32, {4});
    return tensors;
  };
  EXPECT_NO_THROW(run(good())());
  const auto with = [&](auto change) {
    ops::UpdateTensors tensors = good();
    change(tensors);
    return run(tensors);
  };
  using Tensors = ops::UpdateTensors;
  refused({"master must have 4 elements"}, with([&](Tensors& t) { t.master = zeros(kF32, {3}); }));
  refused({"weight is missing"}, with([&](Tensors& t) { t.master = Tensor(); }));
  refused({"split masters have no further copy"}, with([&](Tensors& t) {
            t.master = Tensor();
            t.model = zeros(kBf16, {4});
          }));
  refused({"an fp32 model is its own master"},
          with([&](Tensors& t) { t.model = zeros(kF32, {4}); }));
  refused({"grad must be float32, bfloat16 or float16, not int32"},
          with([&](Tensors& t) { t.grad = zeros(DType::kInt32, {4}); }));
  refused({"a state must have 4 elements, not 5"},
          with([&](Tensors& t) { t.states[1].data = zeros(kF32, {5}); }));
  refused({"state is missing"}, with([&](Tensors& t) { t.states[0].data = Tensor(); }));
  refused({"scales is missing"},
          with([&](Tensors& t) { t.states[0].data = zeros(DType::kInt8, {4}); }));
  refused({"a state must be float32, bfloat16, int8 or uint8, not int32"},
          with([&](Tensors& t) { t.states[0].data = zeros(DType::kInt32, {4}); }));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto member :
       {&kernels::UpdateHyper::lr, &kernels::UpdateHyper::beta1, &kernels::UpdateHyper::beta2,
        &kernels::UpdateHyper::eps, &kernels::UpdateHyper::weight_decay}) {
    kernels::UpdateHyper bad;
    bad.*member = nan;
    refused({"a hyperparameter is not finite"}, run(good(), bad));
  }
}

}  // namespace
}  // namespace ds
