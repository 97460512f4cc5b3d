// The gate of a mixture of experts and its rows through the C ABI, against dense tensors and plain
// formulas in double precision.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "capi/world.h"
#include "ds.hpp"
#include "fresh_seed.h"

namespace capi_test {
namespace {

using libds::Gate;
using libds::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Route = std::array<int64_t, 2>;  // token, expert

std::set<Route> routes_of(const Gate& gate) {
  const std::vector<int32_t> chosen = gate.chosen.to_vector<int32_t>();
  const int64_t choices = gate.chosen.shape()[1];
  std::set<Route> out;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] >= 0) out.insert({static_cast<int64_t>(i) / choices, chosen[i]});
  }
  return out;
}

Tensor matrix(const std::vector<float>& values, int64_t columns) {
  return Tensor::from(values, {static_cast<int64_t>(values.size()) / columns, columns});
}

// What the suite of DeepSpeed asserts of its gates.
TEST(ExpertsGate, KeepsTheRoutesOfTheReference) {
  const std::vector<float> four = {.11f, .2f, .1f, .3f, .3f, .4f,  .11f, .1f,
                                   .11f, .1f, .6f, .5f, .1f, .11f, .7f,  .8f};
  const std::string room = R"("top_k": 2, "capacity_factor": 1, "min_capacity": 1)";
  EXPECT_EQ(routes_of(libds::experts_gate(matrix(four, 4), "{" + room + "}")),
            (std::set<Route>{{0, 1}, {1, 0}, {1, 1}, {2, 2}, {2, 3}, {3, 2}, {3, 3}}));
  for (const float factor : {1.0f, 3.0f, 7.0f}) {  // the order of scores decides
    std::vector<float> logits = four;
    for (float& x : logits) x *= factor;
    EXPECT_EQ(routes_of(libds::experts_gate(matrix(logits, 4),
                                            "{" + room + R"(, "drop_policy": "position"})")),
              (std::set<Route>{{0, 1}, {0, 3}, {1, 0}, {1, 1}, {2, 2}, {2, 3}, {3, 2}}));
  }
  const std::vector<float> six = {.5858f, .4801f, .6269f, .5397f, .9722f, .7034f, .5445f, .6332f,
                                  .4519f, .6308f, .0519f, .6450f, .4874f, .8110f, .7467f, .8474f,
                                  .0277f, .3068f, .8570f, .6714f, .5310f, .3274f, .4836f, .9892f};
  const std::string options = R"("top_k": 3, "capacity_factor": 1, "min_capacity": 1)";
  EXPECT_EQ(routes_of(libds::experts_gate(matrix(six, 6), "{" + options + "}")),
            (std::set<Route>{
                {0, 2}, {0, 4}, {1, 1}, {1, 3}, {1, 5}, {2, 1}, {2, 2}, {2, 3}, {3, 0}, {3, 5}}));
  EXPECT_EQ(routes_of(libds::experts_gate(matrix(six, 6),
                                          "{" + options + R"(, "drop_policy": "position"})")),
            (std::set<Route>{
                {0, 2}, {0, 4}, {0, 5}, {1, 1}, {1, 3}, {1, 5}, {2, 1}, {2, 2}, {2, 3}, {3, 0}}));
}

TEST(ExpertsGate, FirstChoicesComeFirst) {
  // Both tokens want both experts; each has room for one.
  const Tensor logits = matrix({2, 1, 3, 5}, 2);
  const std::string room = R"("top_k": 2, "capacity_factor": 0.5, "min_capacity": 1)";
  EXPECT_EQ(routes_of(libds::experts_gate(logits, "{" + room + R"(, "drop_policy": "position"})")),
            (std::set<Route>{{0, 0}, {0, 1}}));
  EXPECT_EQ(
      routes_of(libds::experts_gate(logits, "{" + room + R"(, "drop_policy": "first_choices"})")),
      (std::set<Route>{{0, 0}, {1, 1}}));
}

// Weights and losses by their formulas, for given choices.
struct Reference {
  std::vector<double> weights;
  double balance = 0, z = 0;
};
Reference reference(const std::vector<double>& logits, const Gate& gate, bool sigmoid, bool norm,
                    double scale) {
  const auto experts = static_cast<size_t>(gate.counts.shape()[1]);
  const size_t tokens = logits.size() / experts;
  const auto choices = static_cast<size_t>(gate.chosen.shape()[1]);
  const std::vector<int32_t> chosen = gate.chosen.to_vector<int32_t>();
  const std::vector<int64_t> counts = gate.counts.to_vector<int64_t>();
  Reference out;
  std::vector<double> mean(experts);
  for (size_t t = 0; t < tokens; ++t) {
    double sum = 0, shares = 0;
    std::vector<double> score(experts);
    for (size_t e = 0; e < experts; ++e) sum += std::exp(logits[t * experts + e]);
    for (size_t e = 0; e < experts; ++e) {
      const double x = logits[t * experts + e];
      score[e] = sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x) / sum;
      shares += score[e];
    }
    for (size_t e = 0; e < experts; ++e) mean[e] += score[e] / shares / static_cast<double>(tokens);
    out.z += std::log(sum) * std::log(sum) / static_cast<double>(tokens);
    double together = 0;
    for (size_t k = 0; k < choices; ++k) {
      const int32_t e = chosen[t * choices + k];
      out.weights.push_back(e < 0 ? 0 : score[static_cast<size_t>(e)]);
      together += out.weights.back();
    }
    for (size_t k = 0; k < choices; ++k) {
      double& w = out.weights[t * choices + k];
      w *= norm && together > 0 ? scale / together : scale;
    }
  }
  int64_t counted = 0;
  for (size_t e = 0; e < experts; ++e) counted += counts[2 * experts + e];
  for (size_t e = 0; e < experts; ++e) {
    out.balance += static_cast<double>(experts) * mean[e] *
                   static_cast<double>(counts[2 * experts + e]) / static_cast<double>(counted);
  }
  return out;
}

struct GateCase {
  const char* options;
  bool sigmoid = false, norm = false;
  double scale = 1;
};

// Weights, losses and, by finite differences, their gradients. Chosen experts stay as they are
// while a logit moves by so little.
TEST(ExpertsGate, WeightsLossesAndGradients) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(ds::str_cat("seed ", seed));
  constexpr int64_t kTokens = 13, kExperts = 8;
  const std::vector<float> x = random_floats(kTokens * kExperts, seed);
  const Tensor logits = matrix(x, kExperts);
  for (const GateCase& one :
       {GateCase{R"({})"}, GateCase{R"({"top_k": 3, "route_norm": true})", false, true},
        GateCase{R"({"top_k": 2, "route_scale": 2.5, "capacity_factor": 1, "min_capacity": 1})",
                 false, false, 2.5},
        GateCase{R"({"top_k": 2, "route_norm": true, "capacity_factor": 0.8, "min_capacity": 1,
                     "drop_policy": "first_choices", "balance_choices": 1})",
                 false, true},
        GateCase{R"({"top_k": 4, "score_function": "sigmoid", "route_norm": true,
                     "route_scale": 1.5, "num_expert_groups": 4, "num_limited_groups": 2,
                     "group_score": "top2"})",
                 true, true, 1.5},
        GateCase{R"({"top_k": 1, "drop_policy": "random", "capacity_factor": 1, "min_capacity": 1,
                     "seed": 5})"}}) {
    SCOPED_TRACE(one.options);
    const Gate gate = libds::experts_gate(logits, one.options);
    const auto at = [&](const std::vector<double>& values) {
      return reference(values, gate, one.sigmoid, one.norm, one.scale);
    };
    const std::vector<double> exact(x.begin(), x.end());
    const Reference expected = at(exact);
    const std::vector<float> weights = gate.weights.to_vector<float>();
    const std::vector<float> losses = gate.losses.to_vector<float>();
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], expected.weights[i], 2e-6);
    EXPECT_NEAR(losses[0], expected.balance, 1e-5);
    EXPECT_NEAR(losses[1], expected.z, 1e-5 * expected.z);

    const std::vector<float> by_weights = random_floats(weights.size(), seed + 1);
    const std::vector<float> by_losses = {0.7f, -0.3f};
    const Tensor dw = Tensor::from(by_weights, gate.weights.shape());
    const Tensor dl = Tensor::from(by_losses);
    const std::vector<float> dx =
        libds::experts_gate_backward(logits, gate, &dw, &dl, one.options).to_vector<float>();
    const auto objective = [&](const std::vector<double>& values) {
      const Reference r = at(values);
      double sum = by_losses[0] * r.balance + by_losses[1] * r.z;
      for (size_t i = 0; i < r.weights.size(); ++i) sum += by_weights[i] * r.weights[i];
      return sum;
    };
    for (size_t i = 0; i < x.size(); ++i) {
      constexpr double kStep = 1e-5;
      std::vector<double> more = exact, less = exact;
      more[i] += kStep;
      less[i] -= kStep;
      const double slope = (objective(more) - objective(less)) / (2 * kStep);
      ASSERT_NEAR(dx[i], slope, 1e-5 + 1e-5 * std::fabs(slope)) << i;
    }
  }
}

TEST(ExpertsGate, CountsAreOfChosenAndOfTakenRoutes) {
  const Tensor logits = matrix({3, 2, 1, 3, 1, 2, 3, 2, 1, 3, 2, 1}, 3);
  const Gate gate = libds::experts_gate(
      logits, R"({"top_k": 2, "capacity_factor": 0.75, "min_capacity": 1, "balance_choices": 1})");
  EXPECT_THAT(gate.counts.to_vector<int64_t>(), ElementsAre(4, 3, 1, 2, 2, 1, 4, 0, 0));
}

TEST(ExpertsGate, ABiasChoosesAndDoesNotWeigh) {
  const Tensor logits = matrix({2, 1, 0, 0, 1, 2}, 3);
  const Tensor bias = Tensor::from(std::vector<float>{0, 10, 0});
  const Gate plain = libds::experts_gate(logits);
  const Gate biased = libds::experts_gate(logits, "{}", &bias);
  EXPECT_THAT(plain.chosen.to_vector<int32_t>(), ElementsAre(0, 2));
  EXPECT_THAT(biased.chosen.to_vector<int32_t>(), ElementsAre(1, 1));
  const double share = std::exp(1.0) / (std::exp(2.0) + std::exp(1.0) + 1);
  for (const float w : biased.weights.to_vector<float>()) EXPECT_NEAR(w, share, 1e-6);
}

// A token's random numbers are its own, however ranks share a batch.
TEST(ExpertsGate, RandomChoicesAreThoseOfTheToken) {
  const std::vector<float> x = random_floats(64 * 8, 3);
  const auto chosen = [&](size_t first, size_t count, const char* sample, int seed) {
    const std::vector<float> part(x.begin() + static_cast<std::ptrdiff_t>(first * 8),
                                  x.begin() + static_cast<std::ptrdiff_t>((first + count) * 8));
    return libds::experts_gate(matrix(part, 8),
                               ds::str_cat(R"({"top_k": 2, "sample": ")", sample, R"(", "seed": )",
                                           seed, R"(, "first_token": )", 100 + first, "}"))
        .chosen.to_vector<int32_t>();
  };
  for (const char* sample : {"first", "others", "all"}) {
    const std::vector<int32_t> whole = chosen(0, 64, sample, 9);
    std::vector<int32_t> parts = chosen(0, 24, sample, 9);
    for (const int32_t e : chosen(24, 40, sample, 9)) parts.push_back(e);
    EXPECT_EQ(parts, whole);
    EXPECT_NE(chosen(0, 64, sample, 10), whole);
    EXPECT_NE(chosen(0, 64, "none", 9), whole);
  }
}

// The first expert is drawn by its probability: five standard deviations of 16384 draws, beyond
// which one seed in 400,000 lies.
TEST(ExpertsGate, DrawsFollowTheSoftmax) {
  constexpr size_t kTokens = 16384;
  const std::vector<float> one = {0, 1, 2, -1};
  std::vector<float> x;
  for (size_t t = 0; t < kTokens; ++t) x.insert(x.end(), one.begin(), one.end());
  const uint64_t seed = ds::fresh_seed();
  const Gate gate =
      libds::experts_gate(matrix(x, 4), ds::str_cat(R"({"sample": "first", "seed": )", seed, "}"));
  const std::vector<int64_t> counts = gate.counts.to_vector<int64_t>();
  double sum = 0;
  for (const float v : one) sum += std::exp(v);
  for (size_t e = 0; e < 4; ++e) {
    const double p = std::exp(one[e]) / sum;
    EXPECT_NEAR(static_cast<double>(counts[e]), p * kTokens, 5 * std::sqrt(p * (1 - p) * kTokens))
        << "seed " << seed;
  }
}

// Dense tensors: y = sum over experts and places of combine * rows.
class ExpertsRows : public ::testing::TestWithParam<int64_t> {};

TEST_P(ExpertsRows, AreThoseOfDenseTensors) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(ds::str_cat("seed ", seed));
  constexpr size_t kTokens = 17, kExperts = 5, kWidth = 6;
  const auto choices = static_cast<size_t>(GetParam());
  const Gate gate = libds::experts_gate(
      matrix(random_floats(kTokens * kExperts, seed), kExperts),
      ds::str_cat(R"({"top_k": )", choices, R"(, "capacity_factor": 0.8, "min_capacity": 1})"));
  const libds::SortedRoutes sorted = libds::experts_sort(gate.chosen, kExperts);
  const std::vector<float> x = random_floats(kTokens * kWidth, seed + 1);
  const std::vector<int32_t> chosen = gate.chosen.to_vector<int32_t>();
  const std::vector<int32_t> offsets = sorted.offsets.to_vector<int32_t>();
  const std::vector<float> weights = gate.weights.to_vector<float>();

  const Tensor rows = libds::experts_dispatch(matrix(x, kWidth), sorted.order, GetParam());
  const std::vector<float> r = rows.to_vector<float>();
  ASSERT_EQ(rows.shape()[0], offsets[kExperts]);
  // Expert by expert, tokens in order.
  size_t row = 0;
  for (size_t e = 0; e < kExperts; ++e) {
    ASSERT_EQ(static_cast<size_t>(offsets[e]), row);
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] != static_cast<int32_t>(e)) continue;
      for (size_t j = 0; j < kWidth; ++j) {
        ASSERT_EQ(r[row * kWidth + j], x[i / choices * kWidth + j]);
      }
      ++row;
    }
  }
  // Experts that multiply by their number.
  std::vector<float> out = r;
  for (size_t e = 0; e < kExperts; ++e) {
    for (auto i = static_cast<size_t>(offsets[e]) * kWidth;
         i < static_cast<size_t>(offsets[e + 1]) * kWidth; ++i) {
      out[i] *= static_cast<float>(e + 1);
    }
  }
  const Tensor results = matrix(out, kWidth);
  const std::vector<float> y =
      libds::experts_combine(results, sorted.places, &gate.weights).to_vector<float>();
  const std::vector<float> dy = random_floats(y.size(), seed + 2);
  const Tensor gradient = matrix(dy, kWidth);
  const std::vector<float> dweights =
      libds::experts_weights_backward(results, sorted.places, gradient).to_vector<float>();
  const std::vector<float> drows =
      libds::experts_dispatch(gradient, sorted.order, GetParam(), &gate.weights).to_vector<float>();
  const std::vector<int32_t> places = sorted.places.to_vector<int32_t>();
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t j = 0; j < kWidth; ++j) {
      double sum = 0;
      for (size_t i = t * choices; i < (t + 1) * choices; ++i) {
        if (chosen[i] < 0) continue;
        sum += double{weights[i]} * (chosen[i] + 1) * double{x[t * kWidth + j]};
        const size_t at = static_cast<size_t>(places[i]) * kWidth + j;
        EXPECT_EQ(drows[at], weights[i] * dy[t * kWidth + j]);
      }
      EXPECT_NEAR(y[t * kWidth + j], sum, 1e-5);
    }
    for (size_t i = t * choices; i < (t + 1) * choices; ++i) {
      double dot = 0;
      for (size_t j = 0; j < kWidth && chosen[i] >= 0; ++j) {
        dot += double{dy[t * kWidth + j]} * (chosen[i] + 1) * double{x[t * kWidth + j]};
      }
      EXPECT_NEAR(dweights[i], dot, 1e-4);
    }
  }
  // Dispatch's gradient: the sum of a token's rows.
  const std::vector<float> dx = libds::experts_combine(rows, sorted.places).to_vector<float>();
  for (size_t t = 0; t < kTokens; ++t) {
    int64_t taken = 0;
    for (size_t k = 0; k < choices; ++k) taken += chosen[t * choices + k] >= 0;
    for (size_t j = 0; j < kWidth; ++j) {
      EXPECT_NEAR(dx[t * kWidth + j], static_cast<double>(taken) * x[t * kWidth + j], 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Choices, ExpertsRows, ::testing::Values(1, 2, 3));

TEST(Experts, NoTokensAndNoRows) {
  const Tensor none(DS_FLOAT32, {0, 4});
  const Gate gate = libds::experts_gate(none);
  EXPECT_THAT(gate.losses.to_vector<float>(), ElementsAre(0, 0));
  const libds::SortedRoutes sorted = libds::experts_sort(gate.chosen, 4);
  EXPECT_EQ(sorted.order.shape(), std::vector<int64_t>{0});
  const Tensor x(DS_BFLOAT16, {0, 6});
  const Tensor rows = libds::experts_dispatch(x, sorted.order, 1);
  EXPECT_EQ(rows.shape(), (std::vector<int64_t>{0, 6}));
  EXPECT_EQ(libds::experts_combine(rows, sorted.places).shape(), (std::vector<int64_t>{0, 6}));
  // A token whose only expert has no room for it.
  const Tensor dropped = Tensor::from(std::vector<int32_t>{-1, 0}, {2, 1});
  const libds::SortedRoutes half = libds::experts_sort(dropped, 1);
  const Tensor one = matrix({5, 6}, 2);
  EXPECT_THAT(libds::experts_combine(one, half.places).to_vector<float>(), ElementsAre(0, 0, 5, 6));
}

TEST(Experts, ArgumentsAreChecked) {
  const Tensor logits = matrix({1, 2, 3, 4, 5, 6}, 3);
  const auto refused = [](const std::function<void()>& call, const char* text) {
    EXPECT_THROW(call(), libds::Error) << text;
    EXPECT_THAT(ds_last_error_message(), HasSubstr(text));
  };
  const auto gate = [&](const char* options) {
    return [&logits, options] { libds::experts_gate(logits, options); };
  };
  refused(gate(R"({"topk": 2})"), "did you mean \"top_k\"?");
  refused(gate(R"({"top_k": 4})"), "a token cannot choose 4 of 3 experts");
  refused(gate(R"({"num_expert_groups": 2})"), "3 experts cannot be in 2 groups");
  refused(gate(R"({"score_function": "tanh"})"), "must be one of softmax, sigmoid");
  refused(gate(R"({"capacity_factor": 0})"), "must be above 0");
  refused(gate(R"({"balance_choices": 2})"), "/balance_choices must be a whole number from 1 to 1");
  refused(gate("[1]"), "an object is needed");
  refused([] { libds::experts_gate(Tensor(DS_FLOAT32, {3})); }, "logits has shape [3]");
  refused([] { libds::experts_gate(Tensor(DS_BFLOAT16, {3, 2})); }, "logits is bfloat16");
  const Tensor bias(DS_FLOAT32, {2});
  refused([&] { libds::experts_gate(logits, "{}", &bias); }, "bias has shape [2]; [3] is needed");

  const Gate good = libds::experts_gate(logits);
  const Tensor wrong(DS_FLOAT32, {2, 2});
  refused([&] { libds::experts_gate_backward(logits, good, &wrong, nullptr); },
          "weights_gradient has shape [2, 2]; [2, 1] is needed");
  refused([&] { libds::experts_gate_backward(logits, good, nullptr, nullptr, R"({"top_k": 2})"); },
          "chosen has shape [2, 1]; [2, 2] is needed");
  refused([&] { libds::experts_sort(good.chosen, 2); }, "chosen[0] is 2");
  refused([&] { libds::experts_sort(good.chosen, 0); }, "experts is 0");
  const Tensor x = matrix({1, 2, 3, 4}, 2);
  const Tensor order = Tensor::from(std::vector<int32_t>{0, 2});
  refused([&] { libds::experts_dispatch(x, order, 1); }, "order[1] is 2; 0 to 1 are possible");
  refused([&] { libds::experts_dispatch(x, order, 0); }, "choices is 0");
  const Tensor places = Tensor::from(std::vector<int32_t>{0, 2}, {1, 2});
  refused([&] { libds::experts_combine(x, places); }, "places[1] is 2; -1 to 1 are possible");
  refused([&] { libds::experts_combine(x, order); }, "places has shape [2]");
  refused(
      [&] {
        libds::experts_weights_backward(x, Tensor(DS_INT32, {2, 1}), bias);
      },
      "gradient has shape [2]; [2, 2] is needed");
}

// bf16 rows are copied, and sums rounded once.
TEST(Experts, NarrowRows) {
  const Tensor x(DS_BFLOAT16, {3, 4});
  std::vector<uint16_t> bits(12);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(0x3F80 + i);
  ASSERT_DS_OK(ds_tensor_write(x.get(), bits.data(), 24));
  const Tensor order = Tensor::from(std::vector<int32_t>{2, 0});
  const Tensor rows = libds::experts_dispatch(x, order, 1);
  std::vector<uint16_t> got(8);
  ASSERT_DS_OK(ds_tensor_read(rows.get(), got.data(), 16));
  EXPECT_THAT(got, ElementsAre(0x3F88, 0x3F89, 0x3F8A, 0x3F8B, 0x3F80, 0x3F81, 0x3F82, 0x3F83));
  const Tensor places = Tensor::from(std::vector<int32_t>{0, 1}, {1, 2});
  const Tensor y = libds::experts_combine(rows, places);
  std::vector<uint16_t> sum(4);
  ASSERT_DS_OK(ds_tensor_read(y.get(), sum.data(), 8));
  EXPECT_EQ(sum[0], 0x4004);  // 1.0625 + 1
  EXPECT_EQ(sum[1], 0x4005);  // 1.0703125 + 1.0078125
}

}  // namespace
}  // namespace capi_test
