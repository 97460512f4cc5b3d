#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/worker_set.h"

namespace ds {
namespace {

// True while this thread runs a chunk of any pool: a nested run must not wait for other threads.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local bool inside_chunk = false;

class InsideChunk {
 public:
  InsideChunk() : before_(inside_chunk) { inside_chunk = true; }
  ~InsideChunk() { inside_chunk = before_; }
  InsideChunk(const InsideChunk&) = delete;
  InsideChunk& operator=(const InsideChunk&) = delete;

 private:
  bool before_;
};

struct Body {
  const void* fn;
  WorkerSet::Call call;
};

}  // namespace

int ThreadPool::available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void ThreadPool::check_cpus(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  for (const int cpu : cpus) {
    DS_CHECK(cpu >= 0 && cpu < CPU_SETSIZE && (!known || CPU_ISSET(cpu, &set)),
             Code::kInvalidArgument, "CPU ", cpu, " is not one that this process may run on");
  }
}

ThreadPool::ThreadPool(int threads, std::vector<int> cpus) : threads_(threads) {
  check_cpus(cpus);
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  if (threads_ <= 0) threads_ = cpus.empty() ? available_cpus() : static_cast<int>(cpus.size());
  if (threads_ == 1) return;
  workers_ = WorkerSet::shared(cpus);
  workers_->add_user(threads_);
}

ThreadPool::~ThreadPool() {
  if (workers_) workers_->remove_user(threads_);
}

void ThreadPool::run_erased(int64_t chunks, const void* fn,
                            void (*call)(const void* fn, int64_t chunk)) {
  if (chunks <= 0) return;
  if (workers_ == nullptr || chunks == 1 || inside_chunk) {
    const InsideChunk inside;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) call(fn, chunk);
    return;
  }
  const Body body{fn, call};
  workers_->run(chunks, threads_, &body, [](const void* erased, int64_t chunk) {
    const InsideChunk inside;
    const Body& to = *static_cast<const Body*>(erased);
    to.call(to.fn, chunk);
  });
}

}  // namespace ds
