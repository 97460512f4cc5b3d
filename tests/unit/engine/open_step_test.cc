// What the parts of an engine share of the open step: what its end and its giving up leave.
#include "engine/open_step.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine_world.h"

namespace ds {
namespace {

using engine_test::base_config;
using engine_test::error_of;
using engine_test::with;

// Two micro batches of 4 samples on each of 3 ranks, all set that can be.
OpenStep half_way() {
  OpenStep open;
  open.begin_clock();
  open.count_samples(4, 3, 4);
  open.count_samples(4, 3, 0);
  open.micro_batches = 2;
  open.own_micro_batches = 1;
  open.losses.add(1.5);
  open.tokens = 40;
  open.phase = OpenStep::Phase::kBackwardDone;
  open.forward_counted = open.reduction_deferred = true;
  open.external_loss = 0.5;
  open.mode = {.boundary = true, .no_sync = true, .joined = false, .all_joined = false};
  return open;
}

void expect_no_counters(OpenStep& open) {
  EXPECT_EQ(open.micro_batches + open.own_micro_batches + open.tokens, 0);
  EXPECT_EQ(open.samples + open.own_samples + open.first_sample, 0);
  EXPECT_EQ(open.losses.count(), 0);
  EXPECT_EQ(open.losses.value(), 0);
  EXPECT_EQ(open.seconds(), 0);
}

TEST(OpenStepTest, CountsSamplesOfAllRanksAndItsOwn) {
  const OpenStep open = half_way();
  EXPECT_EQ(open.progress.samples, 24);
  EXPECT_EQ(open.samples, 24);
  EXPECT_EQ(open.first_sample, 24);
  EXPECT_EQ(open.own_samples, 4);
  EXPECT_GE(open.seconds(), 0);
}

TEST(OpenStepTest, EndsWithoutTouchingProgressAndMode) {
  OpenStep open = half_way();
  open.clear_counters();
  expect_no_counters(open);
  EXPECT_EQ(open.progress.samples, 24);
  EXPECT_EQ(open.phase, OpenStep::Phase::kBackwardDone);
  EXPECT_TRUE(open.external_loss);
}

TEST(OpenStepTest, GivenUpKeepsWhatCallersSetForTheNextSteps) {
  OpenStep open = half_way();
  open.progress.samples += 100;  // of steps before it
  open.progress.micro_steps = 7;
  open.progress.tokens = 45;
  open.give_up();
  expect_no_counters(open);
  EXPECT_EQ(open.progress.samples, 100);
  EXPECT_EQ(open.progress.micro_steps, 5);
  EXPECT_EQ(open.progress.tokens, 5);
  EXPECT_EQ(open.phase, OpenStep::Phase::kIdle);
  EXPECT_FALSE(open.forward_counted || open.reduction_deferred || open.external_loss);
  EXPECT_EQ(open.mode.boundary, std::optional<bool>(true));
  EXPECT_TRUE(open.mode.no_sync);
}

TEST(OpenStepTest, SaysWhyGradientsAndStepsAreRefused) {
  OpenStep open;
  open.check_takes_gradients();
  open.check_synced("a step");
  open.phase = OpenStep::Phase::kForwardDone;
  open.mode.no_sync = true;
  EXPECT_NE(error_of(Code::kState, [&] { open.check_takes_gradients(); }).find("its backward"),
            std::string::npos);
  EXPECT_EQ(error_of(Code::kState, [&] { open.check_synced("a step"); }).rfind("a step inside", 0),
            0u);
}

// The batch grows by the samples before the step, whatever of the step itself is counted already.
TEST(OpenStepTest, RampUpFollowsTheSamplesBeforeTheStep) {
  const Json ramp = {{"gradient_accumulation_steps", 4}, {"rampup_batch_size", {4, 4, 48}}};
  Config config = load_config(dump_json(with(base_config(), ramp)));
  OpenStep open;
  for (const int64_t before : {0, 16, 32, 48}) {
    open.clear_counters();
    open.progress.samples = before;
    open.count_samples(16, 1, 16);
    follow_ramp_up(config, open);
    EXPECT_EQ(config.batch.train_batch, 4 + before / 16 * 4) << before;
  }
}

}  // namespace
}  // namespace ds
