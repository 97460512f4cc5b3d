#include "base/forks.h"

#include <pthread.h>

#include <atomic>

namespace ds {
namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): of the process, as forks are
std::atomic<uint32_t> forks{0};

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

uint32_t fork_count() noexcept {
  // Without memory for the handler forks go unnoticed, as they would without this file.
  static const int registered = ::pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace ds
