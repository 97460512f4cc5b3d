// Gates of a mixture of experts on recorded choices: who keeps a place in which expert, and rows
// against the dense einsums that they stand for.
#include "ops/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "base/text.h"
#include "ops/routes.h"

namespace ds::ops {
namespace {

class GateTest : public ::testing::Test {
 protected:
  Tensor make(DType dtype, const Shape& shape) {
    return Tensor::empty(ctx_.device, dtype, shape, MemoryTag::kOther);
  }
  Tensor rows_of(const std::vector<std::vector<float>>& rows) {
    const Tensor out =
        make(DType::kFloat32, {std::ssize(rows), static_cast<int64_t>(rows[0].size())});
    float* to = out.data<float>();
    for (const auto& row : rows) to = std::copy(row.begin(), row.end(), to);
    return out;
  }
  Tensor random(const Shape& shape) {
    const Tensor out = make(DType::kFloat32, shape);
    std::normal_distribution<float> normal;
    std::generate_n(out.data<float>(), out.elements(), [&] { return normal(random_); });
    return out;
  }

  struct Outcome {
    Routes routes;
    Tensor scores, places, weights;
    int64_t capacity = 0;
    // (token, expert, place) of what is kept, sorted.
    std::set<std::array<int32_t, 3>> kept() const {
      std::set<std::array<int32_t, 3>> out;
      for (int64_t r = 0; r < routes.chosen.elements(); ++r) {
        const int32_t expert = routes.chosen.data<int32_t>()[r];
        if (expert < 0) continue;
        out.insert({static_cast<int32_t>(r / routes.choices()), expert, places.data<int32_t>()[r]});
      }
      return out;
    }
  };
  Outcome gate(const Tensor& logits, const GateRule& rule, int64_t capacity, RoutePriority priority,
               bool by_choice = false) {
    const int64_t tokens = logits.size(0), experts = logits.size(1);
    Outcome out;
    out.capacity = capacity;
    out.scores = make(DType::kFloat32, logits.shape());
    gate_scores(ctx_, rule.scores, logits, out.scores);
    const auto ints = [&](const Shape& shape) { return make(DType::kInt32, shape); };
    out.routes = {ints({tokens, rule.choices}), ints({experts + 1}), ints({tokens * rule.choices}),
                  ints({tokens, rule.choices})};
    choose_experts(ctx_, rule, out.scores, Tensor(), Tensor(), Tensor(), out.routes.chosen);
    sort_routes(ctx_, out.routes, by_choice);
    out.places = ints({tokens, rule.choices});
    limit_routes(ctx_, out.routes, capacity, priority, out.scores, out.places);
    out.weights = make(DType::kFloat32, {tokens, rule.choices});
    route_weights(ctx_, rule, out.scores, out.routes.chosen, out.weights);
    return out;
  }

  ThreadPool pool_{2};
  OpContext ctx_{make_cpu_device(), &pool_};
  std::mt19937_64 random_{17};
};

GateRule top(int64_t choices) {
  GateRule rule;
  rule.choices = choices;
  rule.normalise = choices > 1;
  rule.floor = 0x1p-23f;
  return rule;
}

using Kept = std::set<std::array<int32_t, 3>>;
constexpr auto kScore = RoutePriority::kScore;
constexpr auto kOrder = RoutePriority::kOrder;

// What the suite of DeepSpeed asserts of its top-k gate.
TEST_F(GateTest, KeepsTheRecordedRoutes) {
  const std::vector<std::vector<float>> four = {
      {.11f, .2f, .1f, .3f}, {.3f, .4f, .11f, .1f}, {.11f, .1f, .6f, .5f}, {.1f, .11f, .7f, .8f}};
  for (const float factor : {1.0f, 2.0f, 7.0f}) {
    auto scaled = four;
    for (auto& row : scaled) {
      for (float& v : row) v *= factor;
    }
    const Tensor logits = rows_of(scaled);
    const int64_t capacity = expert_capacity(4, 4, 1.0 * 2, 1);
    EXPECT_EQ(capacity, 2);
    // From 3 on, token 0 gives expert 3 a larger score than token 2 does.
    if (factor <= 2) {
      EXPECT_EQ(
          gate(logits, top(2), capacity, kScore).kept(),
          (Kept{{0, 1, 0}, {1, 0, 0}, {1, 1, 1}, {2, 2, 0}, {2, 3, 0}, {3, 2, 1}, {3, 3, 1}}));
    }
    EXPECT_EQ(gate(logits, top(2), capacity, kOrder).kept(),
              (Kept{{0, 1, 0}, {0, 3, 0}, {1, 0, 0}, {1, 1, 1}, {2, 2, 0}, {2, 3, 1}, {3, 2, 1}}));
  }
  const Tensor six = rows_of({{.5858f, .4801f, .6269f, .5397f, .9722f, .7034f},
                              {.5445f, .6332f, .4519f, .6308f, .0519f, .6450f},
                              {.4874f, .8110f, .7467f, .8474f, .0277f, .3068f},
                              {.8570f, .6714f, .5310f, .3274f, .4836f, .9892f}});
  EXPECT_EQ(gate(six, top(3), 2, kScore).kept(), (Kept{{0, 2, 0},
                                                       {0, 4, 0},
                                                       {1, 1, 0},
                                                       {1, 3, 0},
                                                       {1, 5, 0},
                                                       {2, 1, 1},
                                                       {2, 2, 1},
                                                       {2, 3, 1},
                                                       {3, 0, 0},
                                                       {3, 5, 1}}));
  EXPECT_EQ(gate(six, top(3), 2, kOrder).kept(), (Kept{{0, 2, 0},
                                                       {0, 4, 0},
                                                       {0, 5, 0},
                                                       {1, 1, 0},
                                                       {1, 3, 0},
                                                       {1, 5, 1},
                                                       {2, 1, 1},
                                                       {2, 2, 1},
                                                       {2, 3, 1},
                                                       {3, 0, 0}}));
}

TEST_F(GateTest, WithoutDroppingEveryRouteHasAPlace) {
  const Tensor logits = rows_of({{.95f, .85f, .9f, .8f},
                                 {.7f, .65f, .75f, .6f},
                                 {.5f, .55f, .45f, .4f},
                                 {.35f, .3f, .25f, .2f}});
  const Outcome all = gate(logits, top(2), 8, kOrder);
  EXPECT_EQ(
      all.kept(),
      (Kept{
          {0, 0, 0}, {0, 2, 0}, {1, 0, 1}, {1, 2, 1}, {2, 0, 2}, {2, 1, 0}, {3, 0, 3}, {3, 1, 1}}));
  int64_t largest = 0;  // the capacity that this takes
  for (int64_t e = 0; e < 4; ++e) {
    largest = std::max(largest, all.routes.begin(e + 1) - all.routes.begin(e));
  }
  EXPECT_EQ(largest, 4);
}

TEST_F(GateTest, CapacitiesAreThoseOfTheReference) {
  EXPECT_EQ(expert_capacity(8, 2, 2.0 * 2, 4), 16);
  EXPECT_EQ(expert_capacity(8, 2, 4.0, 4), 16);
  EXPECT_EQ(expert_capacity(4, 4, 1.0 * 2, 8), 8);
  EXPECT_EQ(expert_capacity(3, 4, 8.0, 4), 6);
  EXPECT_EQ(expert_capacity(10, 4, 1.0, 0), 3);
  // 2.0000000001 is 2 in fp32.
  EXPECT_EQ(expert_capacity(2, 1, 1.00000000005, 0), 2);
  EXPECT_EQ(gate(random({8, 2}), top(2), 16, kScore).kept().size(), 16u);
  EXPECT_EQ(gate(random({8, 2}), top(1), 16, kScore).kept().size(), 8u);
}

// combine and dispatch as dense tensors [tokens, experts, places], their products as plain loops in
// the order of the routes: the same bits.
TEST_F(GateTest, RoutesAreTheDenseProducts) {
  constexpr int64_t kTokens = 24, kExperts = 5, kWidth = 19;
  for (const int64_t k : {1, 2, 3}) {
    for (const double factor : {0.5, 1.0, 3.0}) {
      for (const RoutePriority priority : {kScore, kOrder}) {
        SCOPED_TRACE(str_cat("k ", k, ", factor ", factor));
        const int64_t capacity =
            expert_capacity(kTokens, kExperts, factor * static_cast<double>(k), 1);
        const Outcome out = gate(random({kTokens, kExperts}), top(k), capacity, priority);
        const Tensor x = random({kTokens, kWidth});
        const auto slot = [&](int64_t e, int64_t place) { return e * capacity + place; };
        std::vector<float> slots(static_cast<size_t>(kExperts * capacity * kWidth));
        for (const auto& [token, expert, place] : out.kept()) {
          std::copy_n(x.data<float>() + token * kWidth, kWidth,
                      slots.begin() + slot(expert, place) * kWidth);
        }
        Tensor rows = make(DType::kFloat32, {out.routes.all_rows(), kWidth});
        gather_rows(ctx_, out.routes, x, Tensor(), rows);
        std::vector<Tensor> parts;
        for (int64_t e = 0; e < kExperts; ++e) {
          const int64_t begin = out.routes.begin(e), end = out.routes.begin(e + 1);
          EXPECT_LE(end - begin, capacity);
          parts.push_back(rows.slice(0, begin, end));
          for (int64_t i = begin; i < end; ++i) {
            EXPECT_TRUE(std::equal(rows.data<float>() + i * kWidth,
                                   rows.data<float>() + (i + 1) * kWidth,
                                   slots.begin() + slot(e, i - begin) * kWidth))
                << "row " << i;
          }
        }
        Tensor y = make(DType::kFloat32, {kTokens, kWidth});
        sum_rows(ctx_, out.routes, parts, out.weights, y);
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t i = 0; i < kWidth; ++i) {
            float sum = 0;
            for (int64_t j = 0; j < k; ++j) {
              const int64_t r = t * k + j;
              const int32_t expert = out.routes.chosen.data<int32_t>()[r];
              if (expert < 0) continue;
              const int64_t at = slot(expert, out.places.data<int32_t>()[r]) * kWidth + i;
              sum += out.weights.data<float>()[r] * slots[static_cast<size_t>(at)];
            }
            ASSERT_EQ(y.data<float>()[t * kWidth + i], sum) << "token " << t;
          }
        }
      }
    }
  }
}

// A token whose second route was dropped has all of its weight on the first.
TEST_F(GateTest, WeightsAreSharesOfWhatWasKept) {
  const Outcome out = gate(random({40, 4}), top(2), 6, kScore);
  for (int64_t t = 0; t < 40; ++t) {
    const int32_t* const chosen = out.routes.chosen.data<int32_t>() + t * 2;
    const float* const w = out.weights.data<float>() + t * 2;
    const bool any = chosen[0] >= 0 || chosen[1] >= 0;
    EXPECT_NEAR(w[0] + w[1], any ? 1 : 0, 1e-6);
    for (int j = 0; j < 2; ++j) EXPECT_EQ(w[j] == 0, chosen[j] < 0);
  }
}

TEST_F(GateTest, TiesGoToTheLowerExpertAndNanStaysInRange) {
  GateRule rule = top(2);
  Tensor equal = make(DType::kFloat32, {3, 4});
  std::fill_n(equal.data<float>(), 12, 0.25f);
  equal.data<float>()[6] = std::numeric_limits<float>::quiet_NaN();
  Tensor chosen = make(DType::kInt32, {3, 2});
  choose_experts(ctx_, rule, equal, Tensor(), Tensor(), Tensor(), chosen);
  const int32_t* const c = chosen.data<int32_t>();
  EXPECT_EQ(c[0], 0);
  EXPECT_EQ(c[1], 1);
  EXPECT_TRUE(c[2] >= 0 && c[2] < 4 && c[3] >= 0 && c[3] < 4 && c[2] != c[3]);
}

TEST_F(GateTest, ABiasChoosesAndDoesNotWeigh) {
  GateRule rule = top(1);
  rule.scores = GateScores::kSigmoid;
  const Tensor logits = rows_of({{2, 1, 0}});
  Tensor scores = make(DType::kFloat32, {1, 3}), chosen = make(DType::kInt32, {1, 1});
  gate_scores(ctx_, rule.scores, logits, scores);
  Tensor bias = make(DType::kFloat32, {3});
  std::fill_n(bias.data<float>(), 3, 0.0f);
  bias.data<float>()[2] = 1;
  choose_experts(ctx_, rule, scores, Tensor(), bias, Tensor(), chosen);
  EXPECT_EQ(*chosen.data<int32_t>(), 2);
  rule.scale = 2.5f;
  rule.normalise = false;
  Tensor weights = make(DType::kFloat32, {1, 1});
  route_weights(ctx_, rule, scores, chosen, weights);
  EXPECT_FLOAT_EQ(*weights.data<float>(), 2.5f * 0.5f);
}

TEST_F(GateTest, UnusedTokensChooseNobody) {
  const Tensor scores = random({3, 4});
  Tensor used = make(DType::kUInt8, {3}), chosen = make(DType::kInt32, {3, 2});
  std::fill_n(used.data<uint8_t>(), 3, uint8_t{1});
  used.data<uint8_t>()[1] = 0;
  choose_experts(ctx_, top(2), scores, Tensor(), Tensor(), used, chosen);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(chosen.data<int32_t>()[i] < 0, i / 2 == 1);
}

// A sample's numbers are its own, whatever part of a batch it is in.
TEST_F(GateTest, NoiseIsCountedBySample) {
  const RandomStream stream{5, 3, 9, 4};
  Tensor all = make(DType::kFloat32, {3, 10}), last = make(DType::kFloat32, {1, 10});
  for (const GateNoise kind : {GateNoise::kUniform, GateNoise::kGumbel, GateNoise::kJitter}) {
    gate_noise(ctx_, {kind, stream, 0.25f}, Tensor(), all);
    RandomStream later = stream;
    later.sample += 2;
    gate_noise(ctx_, {kind, later, 0.25f}, Tensor(), last);
    EXPECT_TRUE(std::equal(last.data<float>(), last.data<float>() + 10, all.data<float>() + 20));
    EXPECT_NE(all.data<float>()[0], all.data<float>()[10]);
    EXPECT_TRUE(std::all_of(all.data<float>(), all.data<float>() + 30, [&](float v) {
      if (kind == GateNoise::kUniform) return v >= 0 && v < 1;
      return kind == GateNoise::kGumbel ? std::isfinite(v) : v >= 0.75f && v < 1.25f;
    }));
  }
  // Drawing by Gumbel noise draws from the softmax: the share of three to one is three quarters.
  Tensor many = make(DType::kFloat32, {4000, 2});
  gate_noise(ctx_, {GateNoise::kGumbel, stream}, Tensor(), many);
  int first = 0;
  for (int64_t t = 0; t < 4000; ++t) {
    first += many.data<float>()[2 * t] + std::log(3.0f) > many.data<float>()[2 * t + 1];
  }
  EXPECT_NEAR(first / 4000.0, 0.75, 0.03);  // more than four deviations
}

template <class Fn>
std::string message(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

TEST_F(GateTest, RefusesByName) {
  const auto refused = [&](GateRule rule) { return message([&] { check_gate_rule(rule, 6); }); };
  GateRule rule = top(7);
  EXPECT_EQ(refused(rule), "a token cannot choose 7 of 6 experts");
  rule = top(2);
  rule.groups = 4;
  EXPECT_NE(refused(rule).find("4 groups of equal size"), std::string::npos);
  rule.groups = 3;
  rule.kept_groups = 4;
  EXPECT_NE(refused(rule).find("4 of 3 groups"), std::string::npos);
  rule.kept_groups = 1;
  rule.choices = 3;
  EXPECT_EQ(refused(rule), "a token cannot choose 3 of 2 experts");
  Tensor chosen = make(DType::kInt32, {2, 1});
  chosen.data<int32_t>()[0] = 4;
  chosen.data<int32_t>()[1] = -1;
  Routes routes{chosen, make(DType::kInt32, {5}), make(DType::kInt32, {2}),
                make(DType::kInt32, {2, 1})};
  EXPECT_EQ(message([&] { sort_routes(ctx_, routes); }),
            "sort_routes: chosen[0] is 4; -1 to 3 are possible");
}

}  // namespace
}  // namespace ds::ops
