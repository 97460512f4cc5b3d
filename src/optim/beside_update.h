// An update that runs on a thread of its own beside the caller's work.
#pragma once

#include <exception>
#include <functional>
#include <thread>

#include "base/thread_pool.h"

namespace ds::optim {

// Threads of an update that leaves `share` of the cores, rounded up, to others; all where that is
// none of them or all.
int threads_beside(int cores, double share);

class BesideUpdate {
 public:
  explicit BesideUpdate(int threads) : pool_(threads) {}
  ~BesideUpdate();
  BesideUpdate(const BesideUpdate&) = delete;
  BesideUpdate& operator=(const BesideUpdate&) = delete;

  // Runs work(pool); nothing else is under way.
  void start(std::function<void(ThreadPool&)> work);
  // Waits until it has ended. Throws what it threw, every time until the next start.
  void wait();
  // Waits, and forgets what it threw.
  void forget() noexcept;

 private:
  void join() noexcept;

  ThreadPool pool_;
  std::function<void(ThreadPool&)> work_;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace ds::optim
