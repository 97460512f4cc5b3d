#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ds {

struct ThreadPool::Shared {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  const std::function<void(int64_t)>* fn = nullptr;
  int64_t chunks = 0;
  std::atomic<int64_t> next{0};
  std::atomic<bool> taken{false};  // a call has the threads
  int active = 0;                  // workers inside the current job
  uint64_t generation = 0;         // counts jobs, so that a worker takes each one once
  bool stopping = false;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  void take_chunks() {
    while (true) {
      const int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunks) return;
      try {
        (*fn)(chunk);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next.store(chunks, std::memory_order_relaxed);
      }
    }
  }
};

namespace {
// The pool whose chunk this thread is running: a nested run must not wait for itself.
thread_local const ThreadPool* current_pool = nullptr;

class CurrentPool {
 public:
  explicit CurrentPool(const ThreadPool* pool) : previous_(current_pool) { current_pool = pool; }
  ~CurrentPool() { current_pool = previous_; }

 private:
  const ThreadPool* previous_;
};
}  // namespace

int ThreadPool::available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

ThreadPool::ThreadPool(int threads)
    : threads_(threads > 0 ? threads : available_cpus()), shared_(std::make_unique<Shared>()) {
  try {
    for (int i = 1; i < threads_; ++i) shared_->workers.emplace_back([this] { work(); });
  } catch (const std::exception& error) {
    stop();
    fail(Code::kOutOfMemory, "cannot start ", threads_ - 1, " threads: ", error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->wake.notify_all();
  for (std::thread& worker : shared_->workers) worker.join();
}

void ThreadPool::work() {
  Shared& s = *shared_;
  const CurrentPool inside(this);
  uint64_t seen = 0;
  std::unique_lock lock(s.mutex);
  while (true) {
    s.wake.wait(lock, [&] { return s.stopping || s.generation != seen; });
    if (s.stopping) return;
    seen = s.generation;
    if (s.fn == nullptr) continue;  // woke after the job had ended
    ++s.active;
    lock.unlock();
    s.take_chunks();
    lock.lock();
    if (--s.active == 0) s.done.notify_one();
  }
}

void ThreadPool::run(int64_t chunks, const std::function<void(int64_t)>& fn) {
  if (chunks <= 0) return;
  Shared& s = *shared_;
  if (threads_ == 1 || chunks == 1 || current_pool == this ||
      s.taken.exchange(true, std::memory_order_acquire)) {
    const CurrentPool inside(this);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) fn(chunk);
    return;
  }
  struct GiveBack {
    std::atomic<bool>& taken;
    ~GiveBack() { taken.store(false, std::memory_order_release); }
  } give_back{s.taken};
  {
    const std::lock_guard lock(s.mutex);
    s.fn = &fn;
    s.chunks = chunks;
    s.next.store(0, std::memory_order_relaxed);
    s.error = nullptr;
    ++s.generation;
  }
  s.wake.notify_all();
  {
    const CurrentPool inside(this);
    s.take_chunks();
  }
  std::unique_lock lock(s.mutex);
  s.done.wait(lock, [&] { return s.active == 0; });
  s.fn = nullptr;
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace ds
