// Attention whose heads of keys and values are fewer than the ranks that share the layer: several
// ranks hold the same head, and their gradients of it are added up. Against formulas in double
// precision, whose derivatives are finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <random>

#include "fresh_seed.h"
#include "tensor_parallel_world.h"
#include "thread_mesh.h"

namespace ds {
namespace {

using namespace mesh_test;  // NOLINT: what these tests are about

constexpr int64_t kTokens = 5, kWidth = 6, kSize = 2;

struct Problem {
  int64_t heads = 8, kv_heads = 2;
  std::vector<std::vector<float>> parameters = {};  // q, k, v, their biases, out
  std::vector<float> x = {}, dy = {};
  int64_t group() const { return heads / kv_heads; }
};
enum { kQ, kK, kV, kBiasQ, kBiasK, kBiasV, kOut, kParameters };

Problem make_problem(int64_t heads, int64_t kv_heads, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.7f);
  Problem problem{heads, kv_heads};
  const auto fill = [&](int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = normal(random);
    return values;
  };
  const int64_t q = heads * kSize, kv = kv_heads * kSize;
  problem.parameters = {fill(q * kWidth), fill(kv * kWidth), fill(kv * kWidth), fill(q),
                        fill(kv),         fill(kv),          fill(kWidth * q)};
  problem.x = fill(kTokens * kWidth);
  problem.dy = fill(kTokens * kWidth);
  return problem;
}

using Doubles = std::vector<double>;

// rows [T, n] of x w^T + b.
Doubles project(const Doubles& x, const Doubles& w, const Doubles& b, int64_t n) {
  Doubles y;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t r = 0; r < n; ++r) {
      double sum = b[static_cast<size_t>(r)];
      for (int64_t c = 0; c < kWidth; ++c) {
        sum += x[static_cast<size_t>(t * kWidth + c)] * w[static_cast<size_t>(r * kWidth + c)];
      }
      y.push_back(sum);
    }
  }
  return y;
}

// The sum of dy times the layer's output.
double loss(const Problem& problem, const std::vector<Doubles>& p) {
  const Doubles x(problem.x.begin(), problem.x.end());
  const int64_t width = problem.heads * kSize, kv_width = problem.kv_heads * kSize;
  const Doubles q = project(x, p[kQ], p[kBiasQ], width), k = project(x, p[kK], p[kBiasK], kv_width),
                v = project(x, p[kV], p[kBiasV], kv_width);
  double total = 0;
  for (int64_t h = 0; h < problem.heads; ++h) {
    const int64_t kv = h / problem.group();
    for (int64_t t = 0; t < kTokens; ++t) {
      Doubles weights;
      for (int64_t s = 0; s <= t; ++s) {
        double score = 0;
        for (int64_t d = 0; d < kSize; ++d) {
          score += q[static_cast<size_t>(t * width + h * kSize + d)] *
                   k[static_cast<size_t>(s * kv_width + kv * kSize + d)];
        }
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kSize))));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (int64_t d = 0; d < kSize; ++d) {
        double mixed = 0;
        for (int64_t s = 0; s <= t; ++s) {
          mixed += weights[static_cast<size_t>(s)] / sum *
                   v[static_cast<size_t>(s * kv_width + kv * kSize + d)];
        }
        for (int64_t o = 0; o < kWidth; ++o) {
          total += problem.dy[static_cast<size_t>(t * kWidth + o)] * mixed *
                   p[kOut][static_cast<size_t>(o * width + h * kSize + d)];
        }
      }
    }
  }
  return total;
}

std::vector<Doubles> differences(const Problem& problem) {
  std::vector<Doubles> p;
  for (const auto& values : problem.parameters) p.emplace_back(values.begin(), values.end());
  std::vector<Doubles> out = p;
  constexpr double kStep = 1e-4;
  for (size_t i = 0; i < p.size(); ++i) {
    for (size_t j = 0; j < p[i].size(); ++j) {
      const double value = std::exchange(p[i][j], p[i][j] + kStep);
      const double above = loss(problem, p);
      p[i][j] = value - kStep;
      out[i][j] = (above - loss(problem, p)) / (2 * kStep);
      p[i][j] = value;
    }
  }
  return out;
}

std::vector<std::vector<float>> run_rank(const Problem& problem, const Mesh& mesh) {
  ThreadPool pool(1);
  const OpContext ctx{make_cpu_device(), &pool};
  Weights weights(ctx);
  const int64_t q = problem.heads * kSize, kv = problem.kv_heads * kSize;
  const SplitRule by_query = SplitRule::head_rows({{problem.heads, kSize}}),
                  by_key = SplitRule::head_rows({{problem.kv_heads, kSize, true}});
  const nn::ParamId wq = weights.add("q.weight", {q, kWidth}, by_query),
                    wk = weights.add("k.weight", {kv, kWidth}, by_key),
                    wv = weights.add("v.weight", {kv, kWidth}, by_key),
                    bq = weights.add("q.bias", {q}, by_query.of_bias()),
                    bk = weights.add("k.bias", {kv}, by_key.of_bias()),
                    bv = weights.add("v.bias", {kv}, by_key.of_bias()),
                    wo = weights.add("o.weight", {kWidth, q},
                                     SplitRule::head_columns({{problem.heads, kSize}}));
  weights.cut(problem.parameters, mesh.shape(), mesh.rank());
  Communicator& group = *mesh.group(MeshGroup::kTensor);
  nn::Tape tape(ctx, weights, &weights, {});
  const nn::Value x = tape.make_value(weights.zeros({1, kTokens, kWidth}));
  std::copy(problem.x.begin(), problem.x.end(), x.data.data<float>());
  const nn::Value in = to_parts(tape, x, group);
  nn::Attention spec;
  spec.heads = weights.shape(wq)[0] / kSize;
  spec.kv_heads = weights.shape(wk)[0] / kSize;
  EXPECT_EQ(spec.heads, problem.heads / mesh.size());
  EXPECT_EQ(spec.kv_heads, std::max<int64_t>(problem.kv_heads / mesh.size(), 1));
  spec.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(kSize)));
  const nn::Value mixed =
      nn::attention(tape, nn::linear(tape, in, wq, bq), nn::linear(tape, in, wk, bk),
                    nn::linear(tape, in, wv, bv), spec);
  const nn::Value y = from_parts(tape, nn::linear(tape, mixed, wo, nn::kNoParam), group);
  const Tensor upstream = weights.zeros(y.data.shape());
  std::copy(problem.dy.begin(), problem.dy.end(), upstream.data<float>());
  y.slot->add(ctx, upstream, false);
  tape.backward();
  weights.sum_copies(mesh);
  std::vector<std::vector<float>> gradients;
  for (const auto& p : problem.parameters) gradients.emplace_back(p.size(), NAN);
  weights.join_gradients(gradients);
  return gradients;
}

struct Case {
  int64_t heads, kv_heads;
  int ranks;
};

class SharedHeads : public ::testing::TestWithParam<Case> {};

TEST_P(SharedHeads, HaveTheGradientsOfTheWholeLayer) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Problem problem = make_problem(GetParam().heads, GetParam().kv_heads, seed);
  std::vector<std::vector<float>> found;
  for (const auto& p : problem.parameters) found.emplace_back(p.size(), NAN);
  std::mutex mutex;
  run_mesh(GetParam().ranks, {.tensor = GetParam().ranks}, [&](const Mesh& mesh) {
    const auto mine = run_rank(problem, mesh);
    const std::lock_guard lock(mutex);
    for (size_t p = 0; p < mine.size(); ++p) {
      for (size_t i = 0; i < mine[p].size(); ++i) {
        if (std::isnan(mine[p][i])) continue;
        EXPECT_TRUE(std::isnan(found[p][i])) << "two ranks count an element of " << p;
        found[p][i] = mine[p][i];
      }
    }
  });
  const std::vector<Doubles> expected = differences(problem);
  for (size_t p = 0; p < kParameters; ++p) {
    double largest = 1;
    for (const double value : expected[p]) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < expected[p].size(); ++i) {
      // fp32 sums of fewer than 100 terms, and differences that are good to 1e-7.
      EXPECT_NEAR(found[p][i], expected[p][i], 1e-5 * largest) << p << " at " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedHeads,
                         ::testing::Values(Case{8, 2, 1}, Case{8, 2, 2}, Case{8, 2, 4},
                                           Case{8, 2, 8}, Case{4, 1, 2}, Case{4, 1, 4},
                                           Case{4, 4, 4}));

}  // namespace
}  // namespace ds
