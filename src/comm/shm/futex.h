// Waiting for a word of shared memory to change: spin a little, let others run a little, sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ds::comm {

// Sleeps while the word is `value`, at most so long; may return early.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::milliseconds most);
void futex_wake(std::atomic<uint32_t>& word) noexcept;  // all sleepers

// Calls ready() until it is true or the patience for waiting awake is over. Pauses only where every
// rank of the host can have a processor of its own.
class Patience {
 public:
  explicit Patience(int ranks_on_host);
  template <class Ready>
  bool wait(const Ready& ready) const {
    for (int i = 0; i < pauses_; ++i) {
      if (ready()) return true;
      pause();
    }
    const auto end = std::chrono::steady_clock::now() + awake_;
    do {
      if (ready()) return true;
      yield();
    } while (std::chrono::steady_clock::now() < end);
    return ready();
  }

 private:
  static void pause();
  static void yield();
  int pauses_;
  std::chrono::microseconds awake_;
};

}  // namespace ds::comm
