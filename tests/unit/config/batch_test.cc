// Batch-size arithmetic: the derivation table, failures, and the run-time setters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "config/batch.h"
#include "config/check.h"
#include "fresh_seed.h"

namespace ds {
namespace {

using Size = std::optional<int64_t>;

TEST(Batch, EveryTwoReproduceTheThird) {
  struct Row {
    int64_t train, micro, accumulation;
  };
  for (const Row& row : {Row{32, 16, 1}, Row{32, 8, 2}}) {
    for (const auto& [train, micro, accumulation] :
         {std::tuple<Size, Size, Size>{row.train, row.micro, row.accumulation},
          {row.train, row.micro, {}},
          {row.train, {}, row.accumulation},
          {{}, row.micro, row.accumulation}}) {
      const BatchConfig batch = resolve_batch(train, micro, accumulation, 2);
      EXPECT_EQ(batch.train_batch, row.train);
      EXPECT_EQ(batch.micro_batch, row.micro);
      EXPECT_EQ(batch.accumulation, row.accumulation);
      EXPECT_EQ(batch.data_parallel, 2);
    }
  }
}

TEST(Batch, OneAlone) {
  const BatchConfig train = resolve_batch(32, {}, {}, 2);
  EXPECT_EQ(train.micro_batch, 16);
  EXPECT_EQ(train.accumulation, 1);
  const BatchConfig micro = resolve_batch({}, 8, {}, 2);
  EXPECT_EQ(micro.train_batch, 16);
  EXPECT_EQ(micro.accumulation, 1);
  EXPECT_EQ(resolve_batch(64, 64, {}, 1).accumulation, 1);
  EXPECT_THROW(resolve_batch({}, {}, 2, 1), Error);
  EXPECT_THROW(resolve_batch({}, {}, {}, 1), Error);
}

TEST(Batch, FailuresNameAllFourNumbers) {
  for (const auto& [train, micro, accumulation] :
       {std::tuple<Size, Size, Size>{33, 17, 2}, {32, 18, 1}, {33, 17, {}}, {32, 18, {}}}) {
    try {
      resolve_batch(train, micro, accumulation, 2);
      FAIL() << *train << " " << *micro;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kConfig);
      const std::string size = "train_batch_size " + std::to_string(*train);
      EXPECT_THAT(error.message(), testing::HasSubstr(size));
      EXPECT_THAT(error.message(), testing::HasSubstr("per_gpu " + std::to_string(*micro)));
      EXPECT_THAT(error.message(), testing::HasSubstr("gradient_accumulation_steps "));
      EXPECT_THAT(error.message(), testing::HasSubstr("data-parallel size 2"));
    }
  }
}

TEST(Batch, FailuresSayHowManyRanksWouldFit) {
  for (const auto& [train, text] :
       {std::pair(8, "; these sizes fit 1 rank"), std::pair(16, "; these sizes fit 2 ranks")}) {
    try {
      resolve_batch(train, 4, 2, 3);
      ADD_FAILURE() << train;
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), testing::EndsWith(text));
    }
  }
}

// What is accepted satisfies the equation and keeps what was given; what satisfies it is accepted.
TEST(Batch, RandomTriadsAgreeWithTheEquation) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto small = [&] { return static_cast<int64_t>(random() % 12 + 1); };
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const int64_t ranks = small() % 4 + 1;
    const int64_t micro = small(), accumulation = small();
    const bool exact = random() % 2 == 0;
    const int64_t train = exact ? micro * accumulation * ranks : small() * small();
    const auto hide = [&](int64_t value) { return random() % 3 == 0 ? Size() : Size(value); };
    const Size t = hide(train), m = hide(micro), a = hide(accumulation);
    try {
      const BatchConfig batch = resolve_batch(t, m, a, ranks);
      EXPECT_EQ(batch.train_batch, batch.micro_batch * batch.accumulation * ranks);
      EXPECT_GT(batch.micro_batch, 0);
      EXPECT_GT(batch.accumulation, 0);
      if (t) {
        EXPECT_EQ(batch.train_batch, *t);
      }
      if (m) {
        EXPECT_EQ(batch.micro_batch, *m);
      }
      if (a) {
        EXPECT_EQ(batch.accumulation, *a);
      }
      ++accepted;
    } catch (const Error&) {
      // Refused: nothing to start from, or no choice of the hidden values fits exactly.
      const bool nothing = !t && !m;
      const bool possible = !nothing &&
                            t.value_or(0) % (m.value_or(1) * a.value_or(1) * ranks) == 0 &&
                            !(t && m && a && *t != *m * *a * ranks);
      EXPECT_FALSE(t && possible) << *t << " " << m.value_or(0) << " " << a.value_or(0);
      EXPECT_TRUE(nothing || t);
      ++refused;
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Batch, TheTrainBatchIsSetByTheAccumulation) {
  BatchConfig batch = resolve_batch(32, 8, {}, 2);
  batch.set_train_batch(64);
  EXPECT_EQ(batch.accumulation, 4);
  EXPECT_EQ(batch.micro_batch, 8);
  for (const int64_t wrong : {int64_t{0}, int64_t{-8}, int64_t{12}}) {
    EXPECT_THROW(batch.set_train_batch(wrong), Error) << wrong;
  }
  EXPECT_EQ(batch.train_batch, 64) << "a refused change leaves the sizes alone";
  EXPECT_EQ(batch.accumulation, 4);
}

// Sizes that Megatron's RampupBatchsizeNumMicroBatches gives for --rampup-batch-size 32 16 1000 and
// --global-batch-size 128: six increments, one every 166.67 samples.
TEST(BatchRampUp, SizesOfConsumedSamples) {
  const BatchRampUp ramp{32, 16, 1000, 128};
  const std::pair<int64_t, int64_t> rows[] = {
      {0, 32},   {166, 32}, {167, 48},  {333, 48},  {334, 64},   {500, 80},   {666, 80},
      {667, 96}, {833, 96}, {834, 112}, {999, 112}, {1000, 128}, {1001, 128}, {1 << 30, 128}};
  for (const auto& [consumed, size] : rows) EXPECT_EQ(ramp.size_after(consumed), size) << consumed;
  const BatchRampUp none{128, 16, 1000, 128};
  EXPECT_EQ(none.size_after(0), 128);
}

// Against the formula in whole numbers, where the doubles of Megatron's are exact.
TEST(BatchRampUp, RandomRampsAgreeWithTheFormula) {
  std::mt19937_64 random(20);
  for (int round = 0; round < 200; ++round) {
    const int64_t increment = 1 + static_cast<int64_t>(random() % 64);
    const int64_t start = 1 + static_cast<int64_t>(random() % 64);
    const int64_t increments = int64_t{1} << (random() % 6);
    const int64_t samples = increments * (1 + static_cast<int64_t>(random() % 1000));
    const BatchRampUp ramp{start, increment, samples, start + increments * increment};
    for (int64_t consumed = 0; consumed <= samples + 1; consumed += 1 + samples / 97) {
      const int64_t done = std::min(consumed * increments / samples, increments);
      ASSERT_EQ(ramp.size_after(consumed), start + done * increment)
          << start << " " << increment << " " << samples << " after " << consumed;
    }
  }
}

// Sizes are multiples of micro batch x ranks, 4 x 3 here, and steps lead to the full size.
TEST(BatchRampUp, WhatMakesItImpossible) {
  const BatchConfig batch = resolve_batch(48, 4, {}, 3);
  const auto problem = [&](int64_t start, int64_t increment) {
    return ramp_up_problem({start, increment, 1000, 48}, batch);
  };
  EXPECT_EQ(problem(12, 12), "");
  EXPECT_EQ(problem(24, 24), "");
  EXPECT_EQ(problem(48, 7), "") << "never grows, so that its steps do not matter";
  EXPECT_THAT(problem(60, 12), testing::HasSubstr("starts with 60 samples, more than"));
  EXPECT_THAT(problem(12, 24), testing::HasSubstr("steps of 24 samples do not lead from 12"));
  EXPECT_THAT(problem(6, 42), testing::HasSubstr("6 samples are no multiple"));
  EXPECT_THAT(problem(12, 18), testing::HasSubstr("18 samples are no multiple"));
  EXPECT_THAT(problem(48 - 14, 14), testing::HasSubstr("34 samples are no multiple"));
  EXPECT_THAT(problem(34, 7), testing::HasSubstr("34 samples are no multiple"));
}

TEST(BatchRampUp, IsRefusedByTheConfiguration) {
  ConfigEnvironment environment;
  environment.data_parallel_size = 3;
  const auto problems = [&](const std::string& more) {
    std::vector<std::string> out;
    const CheckedConfig checked = check_config(
        R"({"train_batch_size": 48, "train_micro_batch_size_per_gpu": 4, )" + more + "}",
        environment);
    for (const ConfigProblem& one : checked.parsed.problems) out.push_back(one.message());
    return out;
  };
  using testing::ElementsAre;
  using testing::HasSubstr;
  EXPECT_THAT(problems(R"("rampup_batch_size": [12, 12, 100])"), ElementsAre());
  EXPECT_THAT(problems(R"("rampup_batch_size": [6, 42, 100])"),
              ElementsAre(HasSubstr("/rampup_batch_size: 6 samples are no multiple")));
  EXPECT_THAT(problems(R"("rampup_batch_size": [12, 12, 100],
                          "managed_gradient_accumulation": false)"),
              ElementsAre(HasSubstr("/rampup_batch_size: sets how many micro batches")));
}

TEST(Batch, WorldThatFits) {
  EXPECT_EQ(world_of_batch(1024, 4, 2), 128);
  EXPECT_EQ(world_of_batch(8, 4, 2), 1);
  EXPECT_EQ(world_of_batch(8, 1, 1), 8);
  EXPECT_EQ(world_of_batch(7, 4, 2), std::nullopt);
  EXPECT_EQ(world_of_batch(12, 4, 2), std::nullopt);
  EXPECT_EQ(world_of_batch(0, 4, 2), std::nullopt);
  EXPECT_EQ(world_of_batch(8, 0, 2), std::nullopt);
  EXPECT_EQ(world_of_batch(8, INT64_MAX, 2), std::nullopt);
}

}  // namespace
}  // namespace ds
