// Time in training: named wall-clock timers for the breakdown of a step, and the throughput meter.
// The clock can be replaced, so that tests need not wait.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ds {

using ClockFn = std::function<double()>;  // seconds, never falling
double steady_seconds();

// Named timers that add up until they are reset, in the order of their first use. One thread.
class WallClockTimers {
 public:
  explicit WallClockTimers(ClockFn clock = steady_seconds) : clock_(std::move(clock)) {}

  // Starting a running timer or stopping an idle one throws kState.
  void start(const std::string& name);
  void stop(const std::string& name);

  bool has(const std::string& name) const { return index_of(name) < timers_.size(); }
  int64_t count(const std::string& name) const;   // intervals completed
  double elapsed(const std::string& name) const;  // seconds, with the running interval
  void reset();                                   // forgets all intervals; running ones go on

  // "time (ms) | fwd: 1.23 | bwd: 4.56": `names`, or all when empty; each divided by `normalizer`.
  std::string line(const std::vector<std::string>& names = {}, double normalizer = 1) const;

 private:
  struct Timer {
    std::string name;
    double total = 0;
    double started = 0;
    int64_t count = 0;
    bool running = false;
  };
  size_t index_of(const std::string& name) const;  // timers_.size() when there is none
  const Timer& get(const std::string& name) const;
  double total(const Timer& timer) const;

  ClockFn clock_;
  std::vector<Timer> timers_;
};

// Times a scope; does nothing without timers.
class ScopedTimer {
 public:
  ScopedTimer(WallClockTimers* timers, std::string name);
  ~ScopedTimer();
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  WallClockTimers* timers_;
  std::string name_;
};

// Samples and tokens per second. The first steps (two by default), in which caches and pages are
// still cold, do not count in the averages.
class ThroughputMeter {
 public:
  explicit ThroughputMeter(int64_t skip_steps = 2) : skip_(skip_steps) {}

  void add_step(double seconds, int64_t samples, int64_t tokens);

  int64_t steps() const noexcept { return steps_; }
  bool averages() const noexcept { return steps_ > skip_; }  // whether a step has counted
  // Averages over the counted steps, 0 before there is one.
  double samples_per_second() const;
  double tokens_per_second() const;
  // Of the last step, counted or not.
  double last_seconds() const noexcept { return last_seconds_; }
  double last_samples_per_second() const;
  double last_tokens_per_second() const;

 private:
  int64_t skip_;
  int64_t steps_ = 0;
  double seconds_ = 0, last_seconds_ = 0;
  int64_t samples_ = 0, tokens_ = 0, last_samples_ = 0, last_tokens_ = 0;
};

}  // namespace ds
