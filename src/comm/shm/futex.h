// Waiting for a word of shared memory to change: spin a little, let others run a little, sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ds::comm {

// Sleeps while the word is `value`, at most so long; may return early.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::milliseconds most);
void futex_wake(std::atomic<uint32_t>& word) noexcept;  // all sleepers

// Calls ready() until it is true or the time for waiting awake is over. Pauses only where every
// rank of the host can have a processor of its own. Where yielding gave the processor away for
// long, to others that compute, the next waits sleep instead: sleepers get it back at once when
// woken. One thread at a time.
class SpinWait {
 public:
  explicit SpinWait(int ranks_on_host);
  template <class Ready>
  bool wait(const Ready& ready) {
    for (int i = 0; i < pauses_; ++i) {
      if (ready()) return true;
      pause();
    }
    if (sleep_at_once_ > 0) {
      --sleep_at_once_;
      return ready();
    }
    auto now = std::chrono::steady_clock::now();
    const auto end = now + awake_;
    while (now < end) {
      if (ready()) return true;
      const auto before = now;
      yield();
      now = std::chrono::steady_clock::now();
      if (now - before > std::chrono::milliseconds(1)) sleep_at_once_ = 256;
    }
    return ready();
  }

 private:
  static void pause();
  static void yield();
  int pauses_;
  int sleep_at_once_ = 0;  // so many waits
  std::chrono::microseconds awake_;
};

}  // namespace ds::comm
