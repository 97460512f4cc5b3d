// A pool that runs a fixed list of chunks on a given number of threads.
//
// Callers cut work into chunks by problem size alone, never by thread count, and every chunk
// writes its own output: so results do not depend on how many threads there are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace ds {

class ThreadPool {
 public:
  // `threads` counts the calling thread; 1 starts no thread at all. 0 means the CPUs this process
  // may run on.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return threads_; }

  // Runs fn(chunk) for every chunk in [0, chunks), the caller taking part. Returns when all are
  // done; the first exception thrown by a chunk is rethrown here. The threads serve one call at a
  // time: a call from inside a chunk, or while another thread's call is running, runs its chunks on
  // the calling thread.
  void run(int64_t chunks, const std::function<void(int64_t)>& fn);

  // Runs fn(begin, end) over [0, n) in pieces of `grain` elements.
  template <class Fn>
  void for_range(int64_t n, int64_t grain, const Fn& fn) {
    if (n <= 0) return;
    const int64_t chunks = (n + grain - 1) / grain;
    if (chunks == 1) return fn(int64_t{0}, n);
    run(chunks, [&](int64_t chunk) {
      const int64_t begin = chunk * grain;
      fn(begin, begin + grain < n ? begin + grain : n);
    });
  }

  // CPUs the process is allowed to run on.
  static int available_cpus();

 private:
  struct Shared;
  void work();
  void stop();

  int threads_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace ds
