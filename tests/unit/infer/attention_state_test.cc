// Sequences of unequal lengths in one batch of the attention state: each gets the numbers that it
// gets alone.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "fresh_seed.h"
#include "unit/infer/texts.h"

namespace ds::infer::states {
namespace {

using models::Model;
using models::WeightForm;

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    size += std::pow(double{b[i]}, 2);
  }
  return a.size() == b.size() ? std::sqrt(difference / size) : INFINITY;
}

class UnequalSequences : public ::testing::TestWithParam<Family> {
 protected:
  std::shared_ptr<Model> make() const { return make_model(GetParam(), seed_); }
  std::vector<int32_t> ids(size_t count) { return random_ids(random_, count); }

  const uint64_t seed_ = ds::fresh_seed();
  std::mt19937_64 random_{seed_};
};

// The bits: a token of several sequences costs each the sums that it costs alone.
TEST_P(UnequalSequences, TokensHaveTheBitsOfEachAlone) {
  SCOPED_TRACE(seed_);
  constexpr size_t kShort = 5, kLong = 17, kTogether = 9;
  for (const WeightForm form : {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt8}) {
    const auto model = make()->prepared_copy({form, 16, true, 2});
    const std::vector<int32_t> first = ids(kShort + kTogether), second = ids(kLong + kTogether);
    std::array<std::vector<std::vector<float>>, 2> alone;
    for (const auto* const text : {&first, &second}) {
      Texts texts(*model, 1);
      for (const int32_t id : *text) alone[text == &second].push_back(texts.feed({{id}})[0]);
    }
    Texts texts(*model, 2);
    // The longer text reads on while the shorter one gets tokens that it forgets.
    for (size_t t = 0; t < kLong; ++t) {
      const auto logits = texts.feed({{t < kShort ? first[t] : 3}, {second[t]}});
      EXPECT_EQ(logits[1], alone[1][t]) << "token " << t;
      if (t >= kShort) texts.cache().shorten(0, kShort);
    }
    EXPECT_EQ(texts.cache().lengths(), (std::vector<int64_t>{kShort, kLong}));
    for (size_t t = 0; t < kTogether; ++t) {
      const auto logits = texts.feed({{first[kShort + t]}, {second[kLong + t]}});
      EXPECT_EQ(logits[0], alone[0][kShort + t]) << "token " << t << " of the shorter text";
      EXPECT_EQ(logits[1], alone[1][kLong + t]) << "token " << t << " of the longer text";
    }
  }
}

// Prompts of unequal lengths in one pass, the shorter one padded behind its end; then more text at
// once, of few and of many tokens. Products of many rows sum in another order than those of few:
// equal to rounding in fp32.
TEST_P(UnequalSequences, MoreTextAtOnceIsThatOfEachAlone) {
  SCOPED_TRACE(seed_);
  const auto model = make();
  const std::vector<int32_t> first = ids(40), second = ids(48);
  Texts texts(*model, 2), one(*model, 1), other(*model, 1);
  const auto check = [&](size_t at0, size_t at1, size_t count, size_t of_first) {
    std::vector<int32_t> padded = part(first, at0, of_first);
    padded.resize(count, 7);
    const std::vector<std::vector<float>> logits = texts.feed({padded, part(second, at1, count)});
    const std::vector<float> shorter(
        logits[0].begin(), logits[0].begin() + static_cast<std::ptrdiff_t>(of_first * kVocab));
    EXPECT_LT(distance(shorter, one.feed({part(first, at0, of_first)})[0]), 1e-5);
    EXPECT_LT(distance(logits[1], other.feed({part(second, at1, count)})[0]), 1e-5);
    texts.cache().shorten(0, static_cast<int64_t>(at0 + of_first));
  };
  check(0, 0, 12, 4);
  check(4, 12, 3, 3);
  check(7, 15, 20, 20);
  check(27, 35, 9, 9);
  check(36, 44, 1, 1);
}

TEST_P(UnequalSequences, RoomIsChecked) {
  const auto model = make();
  Texts texts(*model, 2);
  texts.feed({ids(10), ids(10)});
  texts.cache().shorten(0, 2);
  EXPECT_THROW(texts.cache().shorten(0, 3), Error);
  try {
    texts.feed({ids(55), ids(55)});
    ADD_FAILURE() << "55 tokens found room behind 10 in a cache of 64";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no room for 55 behind 10"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(texts.feed({ids(1)}), Error);
  EXPECT_EQ(texts.cache().lengths(), (std::vector<int64_t>{2, 10}));
}

INSTANTIATE_TEST_SUITE_P(Families, UnequalSequences, ::testing::ValuesIn(kFamilies),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace ds::infer::states
