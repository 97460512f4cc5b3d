// Timers and the throughput meter, on a clock that the test moves.
#include "observe/timers.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/observe/fake_clock.h"

namespace ds {
namespace {

TEST(WallClockTimers, AddUpAndPrintInOrderOfFirstUse) {
  FakeClock clock;
  WallClockTimers timers(clock.fn());
  for (int i = 0; i < 2; ++i) {
    timers.start("fwd");
    clock.now += 0.25;
    timers.stop("fwd");
    timers.start("bwd");
    clock.now += 0.5;
    timers.stop("bwd");
  }
  EXPECT_EQ(timers.count("fwd"), 2);
  EXPECT_DOUBLE_EQ(timers.elapsed("bwd"), 1.0);
  EXPECT_EQ(timers.line(), "time (ms) | fwd: 500.00 | bwd: 1000.00");
  EXPECT_EQ(timers.line({"bwd", "unknown", "fwd"}, 2), "time (ms) | bwd: 500.00 | fwd: 250.00");
  timers.start("fwd");
  clock.now += 1;
  EXPECT_DOUBLE_EQ(timers.elapsed("fwd"), 1.5);  // read while it runs
  timers.reset();
  clock.now += 2;
  timers.stop("fwd");
  EXPECT_DOUBLE_EQ(timers.elapsed("fwd"), 2.0);
  EXPECT_EQ(timers.count("bwd"), 0);
  EXPECT_EQ(timers.elapsed("bwd"), 0);
}

TEST(WallClockTimers, WrongOrderIsAnError) {
  WallClockTimers timers;
  EXPECT_THROW(timers.stop("a"), Error);
  EXPECT_THROW(timers.elapsed("a"), Error);
  timers.start("a");
  EXPECT_THROW(timers.start("a"), Error);
  timers.stop("a");
  EXPECT_THROW(timers.stop("a"), Error);
  EXPECT_GE(timers.elapsed("a"), 0);
  EXPECT_FALSE(timers.has("b"));
}

TEST(WallClockTimers, ScopesStopByThemselves) {
  FakeClock clock;
  WallClockTimers timers(clock.fn());
  {
    const ScopedTimer scope(&timers, "step");
    clock.now += 3;
  }
  EXPECT_DOUBLE_EQ(timers.elapsed("step"), 3);
  const ScopedTimer none(nullptr, "step");
}

TEST(ThroughputMeter, TheFirstTwoStepsDoNotCount) {
  ThroughputMeter meter(2);
  const auto step = [&](double seconds, int64_t samples) {
    meter.add_step(seconds, samples, 10 * samples);
  };
  EXPECT_EQ(meter.samples_per_second(), 0);
  step(50, 8);
  step(20, 8);
  EXPECT_EQ(meter.samples_per_second(), 0);
  EXPECT_FALSE(meter.averages());
  EXPECT_DOUBLE_EQ(meter.last_samples_per_second(), 0.4);
  step(1, 8);
  step(3, 8);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(), 4);
  EXPECT_DOUBLE_EQ(meter.tokens_per_second(), 40);
  EXPECT_DOUBLE_EQ(meter.last_tokens_per_second(), 80.0 / 3);
  EXPECT_DOUBLE_EQ(meter.last_seconds(), 3);
  EXPECT_EQ(meter.steps(), 4);
  EXPECT_TRUE(meter.averages());
}

}  // namespace
}  // namespace ds
