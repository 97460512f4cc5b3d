// The worker threads of the process. Pools that allow the same CPUs share one set, so that two
// engines that run at once divide the CPUs instead of doubling the threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ds {

class WorkerSet {
 public:
  // Empty `cpus`: the workers may run wherever the process may. The registry of live sets is one of
  // the documented global ones; a set ends with its last user.
  static std::shared_ptr<WorkerSet> shared(const std::vector<int>& cpus);
  ~WorkerSet();
  WorkerSet(const WorkerSet&) = delete;
  WorkerSet& operator=(const WorkerSet&) = delete;

  // A user may have `threads` at work, its caller among them. Starts what is missing; throws
  // Error(kOutOfMemory) when the system refuses.
  void add_user(int threads);
  void remove_user(int threads) noexcept;

  using Call = void (*)(const void* fn, int64_t chunk);
  // Runs call(fn, chunk) for every chunk in [0, chunks), at most `threads` at a time with the
  // caller among them, and rethrows the first exception. Several threads may call at once: the
  // workers then serve them in turn, and never more threads are at work together than the largest
  // user asked for, except callers.
  void run(int64_t chunks, int threads, const void* fn, Call call);

 private:
  struct Job {
    const void* fn;
    Call call;
    int64_t chunks;
    int helpers;  // workers that may still join
    std::atomic<int64_t> next{0};
    std::atomic<int> inside{0};  // workers in the job
    std::mutex error_mutex;
    std::exception_ptr error;
  };

  explicit WorkerSet(std::vector<int> cpus) : cpus_(std::move(cpus)) {}
  void work();
  // Takes chunks until none is left, or, for workers, until too many threads are at work.
  void take_chunks(Job& job, bool worker);
  bool crowded() const noexcept {
    return busy_.load(std::memory_order_relaxed) > most_.load(std::memory_order_relaxed);
  }
  Job* join_job();  // with mutex_ held
  void wait_for_work(uint32_t seen);
  void announce();

  const std::vector<int> cpus_;
  std::mutex mutex_;  // jobs_, users_ and the threads
  std::vector<Job*> jobs_;
  std::vector<int> users_;
  std::vector<std::thread> threads_;
  std::atomic<int> most_{0};       // threads of the largest user
  std::atomic<int> busy_{0};       // callers and workers in jobs
  std::atomic<uint32_t> news_{0};  // counts announcements
  std::atomic<bool> stopping_{false};
  std::mutex sleep_mutex_;
  std::condition_variable sleep_;
  std::atomic<int> sleepers_{0};
  std::condition_variable done_;
  std::atomic<int> waiting_callers_{0};
};

}  // namespace ds
