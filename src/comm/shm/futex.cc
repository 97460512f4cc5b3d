#include "comm/shm/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

#include "base/thread_pool.h"

namespace ds::comm {
namespace {

// A lock-free atomic of 32 bits is the word that the system looks at.
static_assert(sizeof(std::atomic<uint32_t>) == 4);
uint32_t* word_of(const std::atomic<uint32_t>& word) {
  return reinterpret_cast<uint32_t*>(const_cast<std::atomic<uint32_t>*>(&word));
}

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::milliseconds most) {
  const timespec time{.tv_sec = most.count() / 1000, .tv_nsec = most.count() % 1000 * 1'000'000};
  ::syscall(SYS_futex, word_of(word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) noexcept {
  ::syscall(SYS_futex, word_of(word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

SpinWait::SpinWait(int ranks_on_host) {
  const bool own_processors = ranks_on_host <= ThreadPool::available_cpus();
  pauses_ = own_processors ? 400 : 0;
  awake_ = std::chrono::microseconds(own_processors ? 100 : 30);
}

void SpinWait::pause() { __builtin_ia32_pause(); }
void SpinWait::yield() { ::sched_yield(); }

}  // namespace ds::comm
