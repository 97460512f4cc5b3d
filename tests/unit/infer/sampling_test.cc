// Sampling: greedy, truncations, and frequencies against the softmax.
#include "infer/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"

namespace ds::infer {
namespace {

// Probability of each token: the share of evenly spread draws that choose it.
std::map<int32_t, double> shares(const std::vector<float>& logits, const SamplingOptions& options) {
  std::map<int32_t, double> out;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    out[sample_token(logits, options, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  }
  return out;
}

TEST(Sampling, ZeroTemperatureTakesTheLikeliestAndTheLowestIdOnTies) {
  EXPECT_EQ(sample_token(std::vector<float>{1, 3, 3, 2}, {}, 0.99), 1);
}

TEST(Sampling, FollowsTheSoftmaxAtEveryTemperature) {
  const std::vector<float> logits{0.3f, -1.2f, 2.0f, 0.0f};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    double total = 0;
    for (float x : logits) total += std::exp(x / temperature);
    auto actual = shares(logits, {temperature, 0, 0});
    for (size_t i = 0; i < logits.size(); ++i) {
      EXPECT_NEAR(actual[static_cast<int32_t>(i)], std::exp(logits[i] / temperature) / total, 2e-4);
    }
  }
}

TEST(Sampling, TopKKeepsTheKLikeliest) {
  const auto actual = shares({0, 1, 2, 3}, {1, 2, 0});
  ASSERT_EQ(actual.size(), 2u);
  EXPECT_NEAR(actual.at(3), 1 / (1 + std::exp(-1.0)), 2e-4);
  EXPECT_EQ(shares({0, 1, 2, 3}, {1, 100, 0}).size(), 4u);
}

TEST(Sampling, TopPKeepsTheSmallestSetThatReachesP) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits{std::log(0.125f), std::log(0.5f), std::log(0.25f),
                                  std::log(0.125f)};
  EXPECT_EQ(shares(logits, {1, 0, 0.4}).size(), 1u);
  EXPECT_EQ(shares(logits, {1, 0, 0.7}).size(), 2u);
  EXPECT_EQ(shares(logits, {1, 0, 0.8}).size(), 3u);
  EXPECT_EQ(shares(logits, {1, 0, 1}).size(), 4u);
  EXPECT_NEAR(shares(logits, {1, 0, 0.7}).at(1), 2.0 / 3, 2e-4);
}

// Of equal logits the lower ids are kept, and drawn first, however many there are.
TEST(Sampling, EqualLogitsAreOrderedByTheirIds) {
  std::vector<float> logits(1000, 1.0f);
  logits[700] = logits[40] = 2;
  for (const SamplingOptions& options : {SamplingOptions{1, 5, 0}, SamplingOptions{1, 5, 0.999}}) {
    std::vector<int32_t> kept;
    for (const auto& [token, share] : shares(logits, options)) kept.push_back(token);
    EXPECT_EQ(kept, (std::vector<int32_t>{0, 1, 2, 40, 700}));
    // In order: the two likelier ones, then the others by their ids.
    const double two = std::exp(1.0), all = 2 * two + 3;
    EXPECT_EQ(sample_token(logits, options, 0.5 * two / all), 40);
    EXPECT_EQ(sample_token(logits, options, 1.5 * two / all), 700);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(sample_token(logits, options, (2 * two + i + 0.5) / all), i);
    }
  }
  // A nucleus that is sought in a growing part of the vocabulary.
  EXPECT_EQ(sample_token(std::vector<float>(1000, 1.0f), {1, 0, 0.9}, 0.5 / 900), 0);
  EXPECT_EQ(shares(std::vector<float>(1000, 1.0f), {1, 0, 0.5}).rbegin()->first, 499);
}

TEST(Sampling, RefusesNonsense) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(sample_token(std::vector<float>{1, nan}, {}, 0), Error);
  EXPECT_THROW(check_sampling({-1, 0, 0}), Error);
  EXPECT_THROW(check_sampling({std::nan(""), 0, 0}), Error);
  EXPECT_THROW(check_sampling({1, -1, 0}), Error);
  EXPECT_THROW(check_sampling({1, 0, 1.5}), Error);
}

}  // namespace
}  // namespace ds::infer
