// When to ask again for something that takes microseconds as a rule and may take seconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/transport.h"

namespace ds::comm {

// The system wakes a thread some 50 microseconds later than it asked for: who sleeps 20 loses 70,
// each time that NCCL has queued a collective. So nobody sleeps at first, and later a part of the
// time that has passed, which bounds what is lost to that part.
class Backoff {
 public:
  static constexpr std::chrono::microseconds kAwake{100}, kShortest{50}, kLongest{1000};

  explicit Backoff(Clock::time_point since = Clock::now()) : since_(since) {}

  // How long to sleep; zero: let others have the processor, and ask again.
  std::chrono::microseconds pause(Clock::time_point now) const {
    const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(now - since_);
    if (waited < kAwake) return std::chrono::microseconds::zero();
    return std::clamp(waited / 4, kShortest, kLongest);
  }
  void rest() const {
    const std::chrono::microseconds time = pause(Clock::now());
    time.count() == 0 ? std::this_thread::yield() : std::this_thread::sleep_for(time);
  }

 private:
  const Clock::time_point since_;
};

}  // namespace ds::comm
