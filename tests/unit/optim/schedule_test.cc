// Schedules against their closed formulas written out independently, and the properties that
// DeepSpeed's own tests assert.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/optimizer/update_gate.h"

namespace ds::optim {
namespace {

constexpr double kTolerance = 1e-12;

TEST(Schedule, NoneKeepsTheConfiguredRate) {
  const Schedule schedule(std::nullopt, 0.25);
  for (int64_t k : {0, 1, 1000}) EXPECT_EQ(schedule.lr(k), 0.25);
  EXPECT_FALSE(schedule.active());
}

TEST(Schedule, WarmupBeginsAtTheMinimumAndIsExactlyMaximalAfterItsSteps) {
  for (const WarmupShape shape : {WarmupShape::kLog, WarmupShape::kLinear}) {
    WarmupLrConfig c;
    c.warmup_min_lr = 1e-5;
    c.warmup_max_lr = 3e-3;
    c.warmup_num_steps = 17;
    c.warmup_type = shape;
    const Schedule schedule(c, 99);
    EXPECT_EQ(schedule.lr(0), 1e-5);
    for (int64_t k = 1; k <= 40; ++k) {
      const auto i = static_cast<double>(k - 1);
      const double gamma = i >= 17                      ? 1
                           : shape == WarmupShape::kLog ? std::log(i + 1) / std::log(17.0)
                                                        : i / 17;
      EXPECT_NEAR(schedule.lr(k), 1e-5 + (3e-3 - 1e-5) * gamma, kTolerance);
    }
    EXPECT_EQ(schedule.lr(18), 3e-3);
  }
}

TEST(Schedule, WarmupWithoutMaximumUsesTheOptimizersRate) {
  WarmupLrConfig c;
  c.warmup_num_steps = 4;
  EXPECT_EQ(Schedule(c, 0.5).lr(100), 0.5);
}

TEST(Schedule, WarmupDecayFallsToZeroAtTheTotal) {
  WarmupDecayLrConfig c;
  c.total_num_steps = 30;
  c.warmup_num_steps = 10;
  c.warmup_max_lr = 0.2;
  const Schedule schedule(c, 99);
  double previous = schedule.lr(11);
  EXPECT_EQ(previous, 0.2);
  for (int64_t k = 12; k <= 31; ++k) {
    const double now = schedule.lr(k);
    EXPECT_LT(now, previous);
    EXPECT_NEAR(now, 0.2 * (30.0 - (k - 1)) / 20, kTolerance);
    previous = now;
  }
  EXPECT_EQ(schedule.lr(31), 0);
  EXPECT_EQ(schedule.lr(1000), 0);
}

TEST(Schedule, WarmupCosineEndsAtItsMinimumRatio) {
  WarmupCosineLrConfig c;
  c.total_num_steps = 100;
  c.warmup_num_steps = 10;
  c.cos_min_ratio = 0.01;
  const Schedule schedule(c, 0.4);
  EXPECT_EQ(schedule.lr(0), 0);
  EXPECT_NEAR(schedule.lr(2), 0.4 * std::log(2.0) / std::log(10.0), kTolerance);
  for (int64_t k = 11; k <= 100; ++k) {
    const double x = static_cast<double>(k - 1 - 10 + 1) / 90;
    const double expected = 0.4 * (0.01 + 0.99 * (1 + std::cos(std::numbers::pi * x)) / 2);
    EXPECT_NEAR(schedule.lr(k), expected, kTolerance);
  }
  EXPECT_NEAR(schedule.lr(100), 0.4 * 0.01, 1e-7);
  EXPECT_NEAR(schedule.lr(500), 0.4 * 0.01, 1e-7);
  c.total_num_steps = c.warmup_num_steps;  // nothing left to decay over: stays at the minimum
  EXPECT_NEAR(Schedule(c, 0.4).lr(11), 0.4 * 0.01, kTolerance);
}

TEST(Schedule, WarmupCosineBeginsAtZeroAndGoesOnFromItsMinimum) {
  WarmupCosineLrConfig c;
  c.total_num_steps = 100;
  c.warmup_num_steps = 10;
  c.warmup_min_ratio = 0.25;
  c.warmup_type = WarmupShape::kLinear;
  const Schedule schedule(c, 0.4);
  EXPECT_EQ(schedule.lr(0), 0);
  for (int64_t k = 1; k <= 10; ++k) {
    const double part = 0.25 + 0.75 * static_cast<double>(k - 1) / 10;
    EXPECT_NEAR(schedule.lr(k), 0.4 * part, kTolerance);
  }
}

TEST(Schedule, ListsGiveEachGroupItsRate) {
  WarmupLrConfig warmup;
  warmup.warmup_num_steps = 4;
  warmup.warmup_type = WarmupShape::kLinear;
  warmup.warmup_min_lr = PerGroup(std::vector<double>{0.1, 0.2});
  warmup.warmup_max_lr = PerGroup(std::vector<double>{0.3, 0.6});
  EXPECT_EQ(Schedule(warmup, 9, 0).lr(0), 0.1);
  EXPECT_EQ(Schedule(warmup, 9, 1).lr(0), 0.2);
  EXPECT_NEAR(Schedule(warmup, 9, 0).lr(3), 0.2, kTolerance);
  EXPECT_NEAR(Schedule(warmup, 9, 1).lr(3), 0.4, kTolerance);
  EXPECT_EQ(Schedule(warmup, 9, 1).lr(50), 0.6);
  LrRangeTestConfig range;
  range.lr_range_test_min_lr = PerGroup(std::vector<double>{1, 3});
  range.lr_range_test_step_size = 2;
  EXPECT_EQ(Schedule(range, 9, 1).lr(4), 9);
  OneCycleConfig cycle;
  cycle.cycle_min_lr = PerGroup(std::vector<double>{1, 2});
  cycle.cycle_max_lr = 4;
  cycle.cycle_first_step_size = cycle.cycle_second_step_size = 2;
  EXPECT_EQ(Schedule(cycle, 9, 1).lr(1), 3);
  EXPECT_EQ(Schedule(cycle, 9, 0).lr(1), 2.5);
  WarmupDecayLrConfig decay;
  decay.total_num_steps = 10;
  decay.warmup_num_steps = 2;
  decay.warmup_max_lr = PerGroup(std::vector<double>{1, 8});
  EXPECT_EQ(Schedule(decay, 9, 0).lr(7), 0.5);
  EXPECT_EQ(Schedule(decay, 9, 1).lr(7), 4);
}

TEST(Schedule, RangeTestGrowsLinearlyOrInStairs) {
  LrRangeTestConfig c;
  c.lr_range_test_min_lr = 1e-4;
  c.lr_range_test_step_size = 5;
  c.lr_range_test_step_rate = 2;
  for (int64_t k = 0; k < 30; ++k) {
    EXPECT_NEAR(Schedule(c, 1).lr(k), 1e-4 * (1 + 2.0 * static_cast<double>(k) / 5), kTolerance);
  }
  c.lr_range_test_staircase = true;
  for (int64_t k = 0; k < 30; ++k) {
    EXPECT_NEAR(Schedule(c, 1).lr(k), 1e-4 * (1 + 2.0 * static_cast<double>(k / 5)), kTolerance);
  }
}

TEST(Schedule, OneCyclePeaksAtTheFirstSizeAndMirrorsMomentum) {
  OneCycleConfig c;
  c.cycle_min_lr = 0.1;
  c.cycle_max_lr = 1.1;
  c.cycle_first_step_size = 10;
  c.cycle_second_step_size = 20;
  c.decay_step_size = 4;
  c.decay_lr_rate = 0.5;
  c.decay_mom_rate = 0.25;
  const Schedule schedule(c, 99);
  for (int64_t k = 0; k <= 30; ++k) {
    const double s = k <= 10 ? static_cast<double>(k) / 10 : static_cast<double>(30 - k) / 20;
    EXPECT_NEAR(schedule.lr(k), 0.1 + s, kTolerance) << k;
    // Before its first step DeepSpeed's schedule holds the smallest momentum.
    EXPECT_NEAR(*schedule.beta1(k), k == 0 ? 0.8 : 0.9 - 0.1 * s, kTolerance) << k;
  }
  EXPECT_EQ(schedule.lr(10), 1.1);
  EXPECT_EQ(*schedule.beta2(), 0.99);
  for (int64_t k = 31; k < 60; ++k) {
    const double z = static_cast<double>(k - 1 - 30 + 1) / 4;
    EXPECT_NEAR(schedule.lr(k), 0.1 / (1 + 0.5 * z), kTolerance);
    EXPECT_NEAR(*schedule.beta1(k), 0.9 * (1 + 0.25 * z), kTolerance);
  }
}

TEST(Schedule, OneCycleStairsAsManyAsStepsEqualTheContinuousForm) {
  OneCycleConfig smooth;
  smooth.cycle_min_lr = 0;
  smooth.cycle_max_lr = 1;
  smooth.cycle_first_step_size = 13;
  smooth.cycle_second_step_size = 7;
  OneCycleConfig stairs = smooth;
  stairs.cycle_first_stair_count = 13;
  stairs.cycle_second_stair_count = 7;
  for (int64_t k = 0; k <= 20; ++k) {
    EXPECT_NEAR(Schedule(stairs, 1).lr(k), Schedule(smooth, 1).lr(k), kTolerance) << k;
  }
}

TEST(Schedule, OneCycleWithoutDecayHoldsItsEnds) {
  OneCycleConfig c;
  c.cycle_min_lr = 0.1;
  c.cycle_max_lr = 1;
  c.cycle_first_step_size = c.cycle_second_step_size = 3;
  c.cycle_momentum = false;
  EXPECT_EQ(Schedule(c, 1).lr(100), 0.1);
  EXPECT_FALSE(Schedule(c, 1).beta1(2));
  EXPECT_FALSE(Schedule(c, 1).beta2());
}

TEST(Clip, ScalesDownToTheLimitAndNeverUp) {
  EXPECT_EQ(kernels::clip_factor(5, 0), 1);
  EXPECT_EQ(kernels::clip_factor(0.5, 1), 1);
  EXPECT_NEAR(kernels::clip_factor(4, 1), 1 / 4.000001, 1e-15);
  EXPECT_NEAR(4 * kernels::clip_factor(4, 0.1), 0.1, 1e-6);
}

TEST(UpdateGate, UnscalesClipsAndSkips) {
  const kernels::GateRule rule{.loss_scale = 8, .share = 2, .clipping = 0.5, .may_skip = true};
  const kernels::UpdateGate open = kernels::decide_update(16, rule);
  EXPECT_EQ(open.norm, 4);
  EXPECT_FLOAT_EQ(open.grad_scale, static_cast<float>(0.5 / 4.000001 / 8 * 2));
  EXPECT_EQ(open.open, 1);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(kernels::decide_update(infinity, rule).open, 0);
  kernels::GateRule always = rule;
  always.may_skip = false;
  EXPECT_EQ(kernels::decide_update(infinity, always).open, 1);
  EXPECT_EQ(kernels::decide_update(infinity, always).grad_scale, 0);
}

}  // namespace
}  // namespace ds::optim
