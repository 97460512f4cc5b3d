// A pool that runs a fixed list of chunks on a given number of threads.
//
// Callers cut work into chunks by problem size alone, never by thread count, and every chunk
// writes its own output: so results do not depend on how many threads there are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace ds {

class WorkerSet;

class ThreadPool {
 public:
  // `threads` counts the calling thread; 1 starts no thread at all. 0 means as many as the CPUs
  // that this process, or `cpus`, allows. The threads themselves belong to the process: see
  // WorkerSet. `cpus` are those that they may run on; empty means any. The calling thread stays
  // where its owner put it.
  explicit ThreadPool(int threads = 0, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return threads_; }

  // Runs fn(chunk) for every chunk in [0, chunks), the caller taking part. Returns when all are
  // done; the first exception thrown by a chunk is rethrown here. A call from inside a chunk runs
  // its chunks on the calling thread. Allocates nothing.
  template <class Fn>
  void run(int64_t chunks, const Fn& fn) {
    run_erased(chunks, &fn,
               [](const void* body, int64_t chunk) { (*static_cast<const Fn*>(body))(chunk); });
  }

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
  // Throws Error(kInvalidArgument) naming the first CPU that the process may not use.
  static void check_cpus(const std::vector<int>& cpus);

 private:
  void run_erased(int64_t chunks, const void* fn, void (*call)(const void* fn, int64_t chunk));

  int threads_;
  std::shared_ptr<WorkerSet> workers_;  // null for one thread
};

}  // namespace ds
