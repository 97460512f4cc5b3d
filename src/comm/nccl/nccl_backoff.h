// When to ask again for something that takes microseconds as a rule and may take seconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/transport.h"

namespace ds::comm {

// The system wakes a thread some 50 microseconds later than it asked for: who sleeps 20 loses 70,
// each time that NCCL has queued a collective. So nobody sleeps at first, nor gives the processor
// away, which on a busy machine costs milliseconds; later a thread sleeps a part of the time that
// has passed, which bounds what is lost to that part.
class Backoff {
 public:
  static constexpr std::chrono::microseconds kAwake{50}, kShortest{50}, kLongest{1000};

  explicit Backoff(Clock::time_point since = Clock::now()) : since_(since) {}

  // How long to sleep; zero: ask again in a moment.
  std::chrono::microseconds pause(Clock::time_point now) const {
    const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(now - since_);
    if (waited < kAwake) return std::chrono::microseconds::zero();
    return std::clamp(waited / 4, kShortest, kLongest);
  }
  static void moment() {
    for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
  }
  void rest() const {
    const std::chrono::microseconds time = pause(Clock::now());
    time.count() == 0 ? moment() : std::this_thread::sleep_for(time);
  }

 private:
  const Clock::time_point since_;
};

}  // namespace ds::comm
