#include "base/worker_set.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/forks.h"

namespace ds {
namespace {

// A worker looks for its next job this long before it sleeps. Operators of a model follow each
// other within microseconds, while waking a sleeper takes some ten.
constexpr auto kSpin = std::chrono::microseconds(60);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins while `waiting()`, for kSpin at most; true when the wait is over. Looks at the clock
// seldom.
template <class Waiting>
bool spin_while(const Waiting& waiting) {
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (!waiting()) return true;
      pause_cpu();
    }
    if (std::chrono::steady_clock::now() - begin > kSpin) return !waiting();
  }
}

struct Registry {
  std::mutex mutex;
  std::map<std::vector<int>, std::weak_ptr<WorkerSet>> sets;
  uint32_t forks = fork_count();
};
Registry& registry() {
  // Outlives threads that end late.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Registry* const one = new Registry;
  return *one;
}

// Whether the process can get what a thread's stack takes; the system gives one error for that and
// for too many threads.
bool room_for_stack() noexcept {
  constexpr size_t kStack = size_t{8} << 20;
  void* const stack = ::mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return false;
  ::munmap(stack, kStack);
  return true;
}

// Best effort: a CPU may have gone since the list was checked.
void pin_this_thread(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  static_cast<void>(sched_setaffinity(0, sizeof(set), &set));
}

}  // namespace

std::shared_ptr<WorkerSet> WorkerSet::shared(const std::vector<int>& cpus) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.forks != fork_count()) {
    // A forked child has none of the threads of its parent's sets, and their locks as those threads
    // held them.
    all.sets.clear();
    all.forks = fork_count();
  }
  std::erase_if(all.sets, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = all.sets.find(cpus); found != all.sets.end()) {
    if (auto set = found->second.lock()) return set;
  }
  std::shared_ptr<WorkerSet> made(new WorkerSet(cpus));
  all.sets[cpus] = made;
  return made;
}

WorkerSet::~WorkerSet() {
  stopping_.store(true);
  announce();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerSet::add_user(int threads) {
  const std::lock_guard lock(mutex_);
  users_.push_back(threads);
  const int most = *std::max_element(users_.begin(), users_.end());
  try {
    while (static_cast<int>(threads_.size()) < most - 1) {
      threads_.emplace_back([this] {
        pin_this_thread(cpus_);
        work();
      });
    }
  } catch (const std::exception& error) {
    users_.pop_back();
    fail(Code::kOutOfMemory, "cannot start ", threads - 1, " threads: ",
         room_for_stack() ? "the process may have no more of them (ulimit -u, or the limit of its "
                            "container); use fewer threads"
                          : "there is no memory for a stack (ulimit -v, or the machine's memory is "
                            "used up); free memory or use fewer threads",
         " (", error.what(), ")");
  }
  most_.store(most);
}

void WorkerSet::remove_user(int threads) noexcept {
  const std::lock_guard lock(mutex_);
  users_.erase(std::find(users_.begin(), users_.end(), threads));
  most_.store(users_.empty() ? 0 : *std::max_element(users_.begin(), users_.end()));
}

void WorkerSet::announce() {
  news_.fetch_add(1);
  if (sleepers_.load() == 0) return;
  { const std::lock_guard lock(sleep_mutex_); }  // a worker between its last look and its sleep
  sleep_.notify_all();
}

void WorkerSet::wait_for_work(uint32_t seen) {
  const auto nothing_new = [&] { return news_.load() == seen; };
  if (spin_while(nothing_new)) return;
  std::unique_lock lock(sleep_mutex_);
  sleepers_.fetch_add(1);
  sleep_.wait(lock, [&] { return !nothing_new(); });
  sleepers_.fetch_sub(1);
}

WorkerSet::Job* WorkerSet::join_job() {
  if (busy_.load() >= most_.load()) return nullptr;
  for (Job* const job : jobs_) {
    if (job->helpers == 0 || job->next.load(std::memory_order_relaxed) >= job->chunks) continue;
    --job->helpers;
    job->inside.fetch_add(1);
    busy_.fetch_add(1);
    return job;
  }
  return nullptr;
}

void WorkerSet::work() {
  while (true) {
    // The counter before the stop flag: in the other order a worker that is interrupted between the
    // two counts the announcement of the stop as seen and sleeps for ever.
    const uint32_t seen = news_.load();
    if (stopping_.load()) return;
    Job* job = nullptr;
    {
      const std::lock_guard lock(mutex_);
      job = join_job();
    }
    if (job == nullptr) {
      wait_for_work(seen);
      continue;
    }
    take_chunks(*job, true);
    busy_.fetch_sub(1);
    job->inside.fetch_sub(1);  // the caller may now end the job
    if (waiting_callers_.load() == 0) continue;
    { const std::lock_guard lock(sleep_mutex_); }
    done_.notify_all();
  }
}

void WorkerSet::take_chunks(Job& job, bool worker) {
  while (!(worker && crowded())) {
    const int64_t chunk = job.next.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= job.chunks) return;
    try {
      job.call(job.fn, chunk);
    } catch (...) {
      const std::lock_guard lock(job.error_mutex);
      if (!job.error) job.error = std::current_exception();
      job.next.store(job.chunks, std::memory_order_relaxed);
    }
  }
}

void WorkerSet::run(int64_t chunks, int threads, const void* fn, Call call) {
  Job job{.fn = fn,
          .call = call,
          .chunks = chunks,
          .helpers = threads - 1,
          .error_mutex = {},
          .error = {}};
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(&job);
  }
  busy_.fetch_add(1);
  announce();
  take_chunks(job, false);
  bool others = false;
  {
    const std::lock_guard lock(mutex_);
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    others = !jobs_.empty();
  }
  busy_.fetch_sub(1);
  if (others) announce();  // a worker that stood back may join them now
  const auto helped = [&] { return job.inside.load() != 0; };
  if (helped() && !spin_while(helped)) {
    std::unique_lock lock(sleep_mutex_);
    waiting_callers_.fetch_add(1);
    done_.wait(lock, [&] { return !helped(); });
    waiting_callers_.fetch_sub(1);
  }
  if (job.error) std::rethrow_exception(std::move(job.error));
}

}  // namespace ds
