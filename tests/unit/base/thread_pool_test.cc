// The thread pool: every chunk once, exceptions, nested and simultaneous calls. The thread
// sanitizer runs these too.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

TEST(ThreadPool, RunsEveryChunkOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t chunks : {0, 1, 2, 7, 1000}) {
      std::vector<int> count(static_cast<size_t>(chunks));  // each element has one writer
      pool.run(chunks, [&](int64_t chunk) { ++count[static_cast<size_t>(chunk)]; });
      EXPECT_EQ(count, std::vector<int>(count.size(), 1)) << threads << " threads";
    }
    pool.run(-5, [](int64_t) { FAIL(); });
  }
}

TEST(ThreadPool, DefaultIsTheAllowedCpus) {
  EXPECT_GE(ThreadPool::available_cpus(), 1);
  EXPECT_EQ(ThreadPool().threads(), ThreadPool::available_cpus());
  EXPECT_EQ(ThreadPool(-3).threads(), ThreadPool::available_cpus());
}

TEST(ThreadPool, RangesCoverWithoutOverlap) {
  ThreadPool pool(3);
  for (const int64_t n : {0, 1, 9, 10, 11, 1001}) {
    for (const int64_t grain : {1, 10, 5000}) {
      std::vector<int> count(static_cast<size_t>(n));
      pool.for_range(n, grain, [&](int64_t begin, int64_t end) {
        EXPECT_LT(begin, end);
        EXPECT_LE(end - begin, grain);
        for (int64_t i = begin; i < end; ++i) ++count[static_cast<size_t>(i)];
      });
      EXPECT_EQ(count, std::vector<int>(count.size(), 1));
    }
  }
}

TEST(ThreadPool, UsesItsThreads) {
  // Both chunks wait for each other, so two threads must be inside at once.
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  pool.run(2, [&](int64_t) {
    inside.fetch_add(1);
    while (inside.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(inside.load(), 2);
}

TEST(ThreadPool, ExceptionsReachTheCallerAndThePoolGoesOn) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> ran{0};
      try {
        pool.run(100, [&](int64_t chunk) {
          ran.fetch_add(1);
          if (chunk == 37) fail(Code::kIo, "chunk ", chunk);
        });
        FAIL() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.message(), "chunk 37");
      }
      EXPECT_LE(ran.load(), 100);
      std::atomic<int64_t> sum{0};
      pool.run(100, [&](int64_t chunk) { sum += chunk; });
      EXPECT_EQ(sum.load(), 4950);
    }
  }
}

TEST(ThreadPool, OneOfManyExceptionsIsThrown) {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.run(64, [](int64_t) { throw std::runtime_error("all fail"); }),
                 std::runtime_error);
  }
}

TEST(ThreadPool, NestedCallsRunOnTheirThread) {
  ThreadPool pool(3);
  std::vector<int> count(20 * 30);
  pool.run(20, [&](int64_t outer) {
    const auto self = std::this_thread::get_id();
    pool.run(30, [&](int64_t inner) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      ++count[static_cast<size_t>(outer * 30 + inner)];
    });
  });
  EXPECT_EQ(count, std::vector<int>(count.size(), 1));
  EXPECT_THROW(pool.run(4, [&](int64_t) { pool.run(4, [](int64_t) { throw 1; }); }), int);
}

TEST(ThreadPool, PoolsNestInEachOther) {
  ThreadPool a(2), b(2);
  std::atomic<int> count{0};
  a.run(4, [&](int64_t) {
    b.run(4, [&](int64_t) { a.run(4, [&](int64_t) { count.fetch_add(1); }); });
  });
  EXPECT_EQ(count.load(), 64);
}

TEST(ThreadPool, ManyCallersAtOnce) {
  ThreadPool pool(2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < 100; ++round) {
        std::vector<int64_t> out(static_cast<size_t>(10 + c));
        const bool throws = round % 10 == c;
        try {
          pool.run(static_cast<int64_t>(out.size()), [&](int64_t chunk) {
            if (throws && chunk == 3) fail(Code::kIo, "caller ", c);
            out[static_cast<size_t>(chunk)] = chunk + 1;
          });
          const auto n = static_cast<int64_t>(out.size());
          if (throws || std::accumulate(out.begin(), out.end(), int64_t{0}) != n * (n + 1) / 2) {
            ++wrong;
          }
        } catch (const Error& error) {
          // Every caller sees its own exception.
          if (!throws || error.message() != "caller " + std::to_string(c)) ++wrong;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

// Two engines at work together: the callers, and no more workers than one of them would have.
TEST(ThreadPool, PoolsShareTheirWorkers) {
  ThreadPool a(3), b(2);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> inside{0}, most{0};
  const auto body = [&](int64_t) {
    const int now = inside.fetch_add(1) + 1;
    int before = most.load();
    while (now > before && !most.compare_exchange_weak(before, now)) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    inside.fetch_sub(1);
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  };
  std::thread other([&] {
    for (int i = 0; i < 40; ++i) b.run(20, body);
  });
  for (int i = 0; i < 40; ++i) a.run(20, body);
  other.join();
  EXPECT_LE(seen.size(), 4u);  // two callers and two workers
  // A worker that sees a second caller come stands back after its chunk.
  EXPECT_LE(most.load(), 4);
}

TEST(ThreadPool, WorkersStayOnTheirCpus) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  ThreadPool pool(2, {cpu});
  EXPECT_EQ(ThreadPool(0, {cpu, cpu}).threads(), 1);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> elsewhere{0}, helped{0};
  for (int round = 0; round < 100 && helped.load() == 0; ++round) {
    pool.run(8, [&](int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::this_thread::get_id() == caller) return;
      helped.fetch_add(1);
      if (sched_getcpu() != cpu) elsewhere.fetch_add(1);
    });
  }
  EXPECT_GT(helped.load(), 0);
  EXPECT_EQ(elsewhere.load(), 0);
  testing::expect_error(Code::kInvalidArgument, {"CPU 100000"}, [] { ThreadPool(2, {100000}); });
  testing::expect_error(Code::kInvalidArgument, {"CPU -1"}, [] { ThreadPool(2, {-1}); });
}

TEST(ThreadPool, StartsAndStopsQuickly) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + i % 4);
    if (i % 2 == 0) {
      std::atomic<int> ran{0};
      pool.run(3, [&](int64_t) { ran.fetch_add(1); });
      EXPECT_EQ(ran.load(), 3);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take all addresses
TEST(ThreadPool, SaysWhichLimitKeepsThreadsAway) {
  const pid_t child = ::fork();
  if (child == 0) {
    // Room for the pool itself, but for no stack.
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto bytes = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + (int64_t{64} << 20));
    const rlimit space{bytes, bytes};
    if (::setrlimit(RLIMIT_AS, &space) != 0) ::_exit(2);
    try {
      std::vector<std::unique_ptr<char[]>> filled;
      try {  // what is left is less than a stack
        while (true) filled.push_back(std::make_unique<char[]>(size_t{1} << 20));
      } catch (const std::bad_alloc&) {
        if (filled.empty()) ::_exit(4);
        filled.pop_back();
      }
      const ThreadPool pool(200);
    } catch (const Error& error) {
      const bool told = error.code() == Code::kOutOfMemory &&
                        error.message().find(
                            "cannot start 199 threads: there is no memory for a "
                            "stack") != std::string::npos;
      ::_exit(told ? 0 : 3);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
#endif

}  // namespace
}  // namespace ds
