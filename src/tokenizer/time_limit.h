// What the regular expressions of a tokenizer's file may take for one text.
#pragma once

#include <time.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ds {

// Published patterns take some nanoseconds per byte; one that reads the rest of the text again for
// every match would take hours. One limit serves all steps of a pipeline.
class TimeLimit {
 public:
  explicit TimeLimit(size_t bytes)
      : limit_(kPerText + kPerByte * static_cast<int64_t>(bytes)), bytes_(bytes) {}
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  size_t bytes() const noexcept { return bytes_; }
  // Called before every search. Most texts end before the clock is read at all.
  bool passed() {
    if (++searches_ % kSearchesPerLook != 0) return false;
    const std::chrono::nanoseconds now = thread_time();
    if (searches_ == kSearchesPerLook) begin_ = now;
    return now - begin_ > limit_;
  }

 private:
  static constexpr std::chrono::nanoseconds kPerText = std::chrono::milliseconds(500);
  static constexpr std::chrono::nanoseconds kPerByte{500};
  static constexpr int64_t kSearchesPerLook = 16;

  // What this thread has computed: other work of the machine does not count.
  static std::chrono::nanoseconds thread_time() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  }

  const std::chrono::nanoseconds limit_;
  const size_t bytes_;
  std::chrono::nanoseconds begin_{};
  int64_t searches_ = 0;
};

}  // namespace ds
