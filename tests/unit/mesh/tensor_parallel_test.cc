// A column-parallel and a row-parallel linear layer on two ranks of a mesh, against the same pair
// in one process: what the mesh and shard specifications are for, with no model around it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <random>

#include "tensor_parallel_world.h"
#include "thread_mesh.h"

namespace ds {
namespace {

using namespace mesh_test;  // NOLINT: what these tests are about

constexpr int64_t kTokens = 7, kIn = 24, kInner = 40, kOut = 16;

// x + bias, once, after the sum.
nn::Value add_bias(nn::Tape& tape, const nn::Value& x, nn::ParamId bias) {
  nn::Value y = tape.make_value(copy_of(tape, x.data));
  const nn::ParameterGuard b(tape.weights(), bias);
  const int64_t n = (*b).elements();
  for (int64_t i = 0; i < y.data.elements(); ++i) {
    y.data.data<float>()[i] += (*b).data<float>()[i % n];
  }
  tape.used(bias);
  tape.record([in = x.slot, out = y.slot, bias, n](nn::Tape& t) {
    const Tensor db = t.gradients().gradient(bias);
    const Tensor& dy = out->gradient();
    for (int64_t i = 0; i < dy.elements(); ++i) db.data<float>()[i % n] += dy.data<float>()[i];
    t.used_backward(bias);
    in->add(t.ctx(), dy, false);
  });
  return y;
}

struct Problem {
  std::vector<std::vector<float>> parameters;  // w1, b1, w2, b2
  std::vector<float> x, dy;
};
struct Result {
  std::vector<float> y, dx;
  std::vector<std::vector<float>> gradients;
};

std::vector<float> floats(const Tensor& t) {
  return {t.data<float>(), t.data<float>() + t.elements()};
}

Result run_rank(const Problem& problem, const Mesh& mesh, ops::Activation kind) {
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  Weights weights(ctx);
  const nn::ParamId w1 = weights.add("up.weight", {kInner, kIn}, SplitRule::rows());
  const nn::ParamId b1 = weights.add("up.bias", {kInner}, SplitRule::rows().of_bias());
  const nn::ParamId w2 = weights.add("down.weight", {kOut, kInner}, SplitRule::columns());
  const nn::ParamId b2 = weights.add("down.bias", {kOut}, SplitRule::columns().of_bias());
  weights.cut(problem.parameters, mesh.shape(), mesh.rank());
  Communicator& group = *mesh.group(MeshGroup::kTensor);

  nn::Tape tape(ctx, weights, &weights, {});
  const nn::Value x = tape.make_value(weights.zeros({kTokens, kIn}));
  std::copy(problem.x.begin(), problem.x.end(), x.data.data<float>());
  nn::Value h = nn::linear(tape, to_parts(tape, x, group), w1, b1);
  h = nn::activation(tape, h, kind);
  h = nn::linear(tape, h, w2, nn::kNoParam);
  const nn::Value y = add_bias(tape, from_parts(tape, h, group), b2);
  const Tensor upstream = weights.zeros(y.data.shape());
  std::copy(problem.dy.begin(), problem.dy.end(), upstream.data<float>());
  Result result;
  result.y = floats(y.data);
  y.slot->add(ctx, upstream, false);
  tape.backward();
  result.dx = floats(x.slot->gradient());
  for (const auto& p : problem.parameters) result.gradients.emplace_back(p.size(), NAN);
  weights.join_gradients(result.gradients);
  return result;
}

Result run(const Problem& problem, int world, ops::Activation kind) {
  Result out;
  std::mutex mutex;
  mesh_test::run_mesh(world, {.tensor = world}, [&](const Mesh& mesh) {
    const Result mine = run_rank(problem, mesh, kind);
    const std::lock_guard lock(mutex);
    if (out.y.empty()) {
      out = mine;
      return;
    }
    EXPECT_EQ(mine.y, out.y) << "ranks differ";
    EXPECT_EQ(mine.dx, out.dx) << "ranks differ";
    for (size_t p = 0; p < mine.gradients.size(); ++p) {
      for (size_t i = 0; i < mine.gradients[p].size(); ++i) {
        if (!std::isnan(mine.gradients[p][i])) out.gradients[p][i] = mine.gradients[p][i];
      }
    }
  });
  return out;
}

Problem make_problem(const std::function<float()>& number) {
  Problem problem;
  const auto fill = [&](int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = number();
    return values;
  };
  problem.parameters = {fill(kInner * kIn), fill(kInner), fill(kOut * kInner), fill(kOut)};
  problem.x = fill(kTokens * kIn);
  problem.dy = fill(kTokens * kOut);
  return problem;
}

// Every product and sum of small whole numbers is exact, so no order of sums shows: all bits.
TEST(TensorParallelPair, HasTheBitsOfOneProcessWhereSumsAreExact) {
  std::mt19937_64 random(11);
  const Problem problem = make_problem([&] { return static_cast<float>(random() % 7) - 3.0f; });
  const Result one = run(problem, 1, ops::Activation::kRelu);
  const Result two = run(problem, 2, ops::Activation::kRelu);
  EXPECT_EQ(two.y, one.y);
  EXPECT_EQ(two.dx, one.dx);
  for (size_t p = 0; p < 4; ++p) EXPECT_EQ(two.gradients[p], one.gradients[p]) << p;
}

// For each number of y and of dx the sum of the sizes of its terms, in doubles: what the rounding
// of a sum is measured by.
struct Sizes {
  std::vector<double> y, dx;
};
Sizes sizes_of_terms(const Problem& problem) {
  const std::vector<float>&w1 = problem.parameters[0], &b1 = problem.parameters[1],
        &w2 = problem.parameters[2], &b2 = problem.parameters[3];
  const auto at = [](const std::vector<float>& m, int64_t r, int64_t c, int64_t columns) {
    return static_cast<double>(m[static_cast<size_t>(r * columns + c)]);
  };
  Sizes out;
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> h(kInner), slope(kInner);
    for (int64_t j = 0; j < kInner; ++j) {
      double x = b1[static_cast<size_t>(j)];
      for (int64_t i = 0; i < kIn; ++i) x += at(problem.x, t, i, kIn) * at(w1, j, i, kIn);
      const double k = std::sqrt(2 / M_PI), u = std::tanh(k * (x + 0.044715 * x * x * x));
      h[static_cast<size_t>(j)] = 0.5 * x * (1 + u);
      slope[static_cast<size_t>(j)] =
          0.5 * (1 + u) + 0.5 * x * (1 - u * u) * k * (1 + 3 * 0.044715 * x * x);
    }
    for (int64_t o = 0; o < kOut; ++o) {
      double size = 0;
      for (int64_t j = 0; j < kInner; ++j) {
        size += std::abs(h[static_cast<size_t>(j)] * at(w2, o, j, kInner));
      }
      out.y.push_back(size + std::abs(b2[static_cast<size_t>(o)]));
    }
    for (int64_t i = 0; i < kIn; ++i) {
      double size = 0;
      for (int64_t j = 0; j < kInner; ++j) {
        double dh = 0;
        for (int64_t o = 0; o < kOut; ++o) dh += at(problem.dy, t, o, kOut) * at(w2, o, j, kInner);
        size += std::abs(dh * slope[static_cast<size_t>(j)] * at(w1, j, i, kIn));
      }
      out.dx.push_back(size);
    }
  }
  return out;
}

// Real numbers: what one rank computes alone has the bits of one process. Only y and dx are sums
// over ranks, cut in two. A sum of n terms in any order is off by at most n u times their sizes.
TEST(TensorParallelPair, DiffersFromOneProcessByTheOrderOfTwoSumsAlone) {
  std::mt19937_64 random(12);
  std::normal_distribution<float> normal(0, 1);
  const Problem problem = make_problem([&] { return normal(random); });
  const Result one = run(problem, 1, ops::Activation::kGeluTanh);
  const Result two = run(problem, 2, ops::Activation::kGeluTanh);
  for (size_t p = 0; p < 4; ++p) EXPECT_EQ(two.gradients[p], one.gradients[p]) << p;
  const Sizes sizes = sizes_of_terms(problem);
  const auto compare = [](const std::vector<float>& a, const std::vector<float>& b,
                          const std::vector<double>& size) {
    ASSERT_EQ(a.size(), b.size());
    ASSERT_EQ(a.size(), size.size());
    constexpr double kRounding = (kInner + 1) * 0x1p-24;
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2 * kRounding * size[i]) << i;
  };
  compare(two.y, one.y, sizes.y);
  compare(two.dx, one.dx, sizes.dx);
}

}  // namespace
}  // namespace ds
