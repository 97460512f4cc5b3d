// Who is blamed when a deadline passes, by what ranks answer.
#include "comm/waiting_ranks.h"

#include <gmock/gmock.h>

namespace ds::testing {
namespace {

using comm::Clock;
using comm::WaitingRanks;
using ::testing::ElementsAre;

constexpr int kRanks = 12;  // more than a byte of bits

// What a rank that waits for `awaited` answers to a question of rank 0.
std::string answer_of(int rank, const std::string& question, const std::vector<int>& awaited) {
  WaitingRanks ranks(rank, kRanks);
  ranks.hear_question(0, question);
  EXPECT_TRUE(ranks.asked());
  const auto answers = ranks.answer(awaited);
  EXPECT_FALSE(ranks.asked());
  EXPECT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers.at(0).first, 0);
  return answers.at(0).second;
}

class Waiting : public ::testing::Test {
 protected:
  std::string ask() { return asker_.ask(Clock::now() + std::chrono::seconds(1)); }
  WaitingRanks asker_{0, kRanks};
};

TEST_F(Waiting, WithoutAnswersAllThatAreAwaitedAreToBlame) {
  ask();
  EXPECT_TRUE(asker_.asking());
  EXPECT_THAT(asker_.to_blame(std::vector{7, 2}), ElementsAre(2, 7));
}

TEST_F(Waiting, WhoWaitsForAnotherIsNotToBlame) {
  const std::string question = ask();
  asker_.hear_answer(2, answer_of(2, question, {0, 11}));
  EXPECT_THAT(asker_.to_blame(std::vector{2, 11}), ElementsAre(11));
  EXPECT_THAT(asker_.to_blame(std::vector{2}), ElementsAre(11));  // not awaited itself
  asker_.hear_answer(11, answer_of(11, question, {9, 10}));
  asker_.hear_answer(9, answer_of(9, question, {10}));
  EXPECT_THAT(asker_.to_blame(std::vector{2}), ElementsAre(10));
}

TEST_F(Waiting, InACircleAllThatAreAwaitedAreNamed) {
  const std::string question = ask();
  asker_.hear_answer(1, answer_of(1, question, {2}));
  asker_.hear_answer(2, answer_of(2, question, {0}));
  EXPECT_THAT(asker_.to_blame(std::vector{1}), ElementsAre(1));
}

TEST_F(Waiting, AnswersToEarlierQuestionsDoNotCount) {
  const std::string earlier = answer_of(1, ask(), {2});
  asker_.hear_answer(1, earlier);
  ask();
  EXPECT_THAT(asker_.to_blame(std::vector{1}), ElementsAre(1));
  asker_.hear_answer(1, earlier);
  EXPECT_THAT(asker_.to_blame(std::vector{1}), ElementsAre(1));
}

TEST_F(Waiting, WhatIsNoQuestionOrAnswerIsPassedOver) {
  const std::string question = ask(), good = answer_of(1, question, {2});
  for (const std::string& bad : {std::string(), good.substr(1), good + "x", question}) {
    asker_.hear_answer(1, bad);
    EXPECT_THAT(asker_.to_blame(std::vector{1}), ElementsAre(1));
  }
  asker_.hear_question(3, "short");
  EXPECT_FALSE(asker_.asked());
}

// A peer that asks twice before this rank waits is answered once, the newer question.
TEST_F(Waiting, TheLastQuestionOfAPeerIsAnswered) {
  WaitingRanks other(1, kRanks);
  other.hear_question(0, ask());
  other.hear_question(0, ask());
  const auto answers = other.answer(std::vector{5});
  ASSERT_EQ(answers.size(), 1u);
  asker_.hear_answer(1, answers[0].second);
  EXPECT_THAT(asker_.to_blame(std::vector{1}), ElementsAre(5));
}

}  // namespace
}  // namespace ds::testing
