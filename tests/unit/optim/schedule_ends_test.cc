// Schedules whose phases are as short as they can be.
#include <gtest/gtest.h>

#include "optim/schedule.h"

namespace ds::optim {
namespace {

// As long as the warm-up: the peak is its last step, and the decay is over with the next one.
TEST(ScheduleEnds, AWarmupThatTakesAllStepsIsFollowedByTheMinimum) {
  for (const int64_t total : {10, 7}) {
    WarmupDecayLrConfig c;
    c.total_num_steps = total;
    c.warmup_num_steps = 10;
    c.warmup_min_lr = 0.125;
    c.warmup_max_lr = 0.5;
    const Schedule schedule(c, 99);
    EXPECT_EQ(schedule.lr(10), 0.5);
    EXPECT_EQ(schedule.lr(11), 0.125);
    EXPECT_EQ(schedule.lr(12), 0.125);
  }
}

// A warm-up of no or one step is one of two, whose first step is at the minimum.
TEST(ScheduleEnds, TheShortestWarmupHasTwoSteps) {
  for (const int64_t steps : {0, 1, 2}) {
    for (const WarmupShape shape : {WarmupShape::kLog, WarmupShape::kLinear}) {
      WarmupLrConfig c;
      c.warmup_num_steps = steps;
      c.warmup_type = shape;
      c.warmup_min_lr = 0;
      c.warmup_max_lr = 1;
      const Schedule schedule(c, 99);
      EXPECT_EQ(schedule.lr(0), 0);
      EXPECT_EQ(schedule.lr(1), 0);
      EXPECT_EQ(schedule.lr(2), shape == WarmupShape::kLog ? 1 : 0.5);
      EXPECT_EQ(schedule.lr(3), 1);
    }
  }
}

}  // namespace
}  // namespace ds::optim
