// Memory accounts and the caching CPU device.
#include "device/device.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "fresh_seed.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

using testing::expect_error;

TEST(MemoryAccount, CountsByTagWithPeaks) {
  MemoryAccount account;
  account.add(MemoryTag::kGradients, 100);
  account.add(MemoryTag::kActivations, 50);
  account.add(MemoryTag::kActivations, 25);
  account.remove(MemoryTag::kActivations, 50);
  EXPECT_EQ(account.now(MemoryTag::kGradients), 100);
  EXPECT_EQ(account.now(MemoryTag::kActivations), 25);
  EXPECT_EQ(account.peak(MemoryTag::kActivations), 75);
  EXPECT_EQ(account.now(MemoryTag::kParameters), 0);
  EXPECT_EQ(account.total_now(), 125);
  EXPECT_EQ(account.total_peak(), 175);
  account.reset_peaks();
  EXPECT_EQ(account.peak(MemoryTag::kActivations), 25);
  EXPECT_EQ(account.total_peak(), 125);
}

TEST(MemoryAccount, ThreadsLoseNothing) {
  MemoryAccount account;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        account.add(MemoryTag::kIo, 3);
        account.remove(MemoryTag::kIo, 3);
      }
      account.add(MemoryTag::kIo, 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.now(MemoryTag::kIo), 28);
  EXPECT_GE(account.peak(MemoryTag::kIo), 28);
  EXPECT_LE(account.peak(MemoryTag::kIo), 4 * 10);
}

TEST(CpuDevice, AlignsAndHandsOutUsableMemory) {
  const auto device = make_cpu_device();
  EXPECT_EQ(device->kind(), DeviceKind::kCpu);
  for (const int64_t bytes : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{4097}, int64_t{100000},
                              (int64_t{4} << 20) + 1}) {
    void* p = device->allocate(bytes, MemoryTag::kOther);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    std::memset(p, 0xA5, static_cast<size_t>(bytes));
    device->deallocate(p, bytes, MemoryTag::kOther);
  }
  EXPECT_EQ(device->allocate(0, MemoryTag::kOther), nullptr);
  device->deallocate(nullptr, 0, MemoryTag::kOther);
  EXPECT_EQ(device->account().total_now(), 0);
}

TEST(CpuDevice, ReusesFreedBlocks) {
  const auto device = make_cpu_device();
  void* first = device->allocate(100000, MemoryTag::kActivations);
  device->deallocate(first, 100000, MemoryTag::kActivations);
  const int64_t reserved = device->reserved_bytes();
  EXPECT_EQ(device->account().now(MemoryTag::kActivations), 0);
  EXPECT_GE(device->account().peak(MemoryTag::kActivations), 100000);
  EXPECT_GE(reserved, 100000);
  // Slightly different sizes share the block, under another tag as well.
  void* second = device->allocate(99000, MemoryTag::kWorkspace);
  EXPECT_EQ(second, first);
  EXPECT_EQ(device->system_allocations(), 1);
  EXPECT_EQ(device->reserved_bytes(), reserved);
  device->deallocate(second, 99000, MemoryTag::kWorkspace);
  device->trim();
  EXPECT_EQ(device->reserved_bytes(), 0);
}

TEST(CpuDevice, SteadyStateAsksTheSystemForNothing) {
  const auto device = make_cpu_device();
  std::mt19937 random(ds::fresh_seed());
  std::vector<int64_t> sizes(50);
  for (int64_t& size : sizes) size = 1 + static_cast<int64_t>(random() % 300000);
  const auto step = [&] {
    std::vector<void*> blocks;
    for (const int64_t size : sizes) blocks.push_back(device->allocate(size, MemoryTag::kOther));
    for (size_t i = 0; i < sizes.size(); ++i) {
      device->deallocate(blocks[i], sizes[i], MemoryTag::kOther);
    }
  };
  step();
  const int64_t asked = device->system_allocations();
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(device->system_allocations(), asked);
}

// Freed places join, and a step that repeats its requests gets the same places.
TEST(CpuDevice, StepsRepeatTheirPlaces) {
  const auto device = make_cpu_device();
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  struct Event {
    size_t block;
    int64_t bytes;  // 0: free
  };
  std::vector<Event> step;
  std::vector<size_t> live;
  constexpr size_t kBlocks = 200;
  std::vector<int64_t> sizes(kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    sizes[i] = 1 + static_cast<int64_t>(random() % 3'000'000);
    step.push_back({i, sizes[i]});
    live.push_back(i);
    while (!live.empty() && random() % 5 < 2) {
      const size_t at = random() % live.size();
      step.push_back({live[at], 0});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  for (const size_t block : live) step.push_back({block, 0});
  void* const kept = device->allocate(1000, MemoryTag::kParameters);
  std::vector<void*> first;
  int64_t grown = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<void*> places(kBlocks), now(kBlocks);
    for (const Event& event : step) {
      if (event.bytes > 0) {
        places[event.block] = now[event.block] = device->allocate(event.bytes, MemoryTag::kOther);
        std::memset(now[event.block], static_cast<int>(event.block % 251),
                    static_cast<size_t>(event.bytes));
      } else {
        const auto* bytes = static_cast<unsigned char*>(now[event.block]);
        const auto size = static_cast<size_t>(sizes[event.block]);
        ASSERT_EQ(bytes[0], event.block % 251) << "places overlap";
        ASSERT_EQ(bytes[size - 1], event.block % 251) << "places overlap";
        device->deallocate(now[event.block], sizes[event.block], MemoryTag::kOther);
      }
    }
    if (round == 0) {
      first = places;
      grown = device->system_allocations();
    }
    EXPECT_EQ(places, first) << "round " << round;
    EXPECT_EQ(device->system_allocations(), grown);
  }
  device->deallocate(kept, 1000, MemoryTag::kParameters);
  void* const all = device->allocate(device->reserved_bytes(), MemoryTag::kOther);
  EXPECT_EQ(device->system_allocations(), grown) << "free places did not join";
  device->deallocate(all, device->reserved_bytes(), MemoryTag::kOther);
  device->trim();
  EXPECT_EQ(device->reserved_bytes(), 0);
  EXPECT_EQ(device->account().total_now(), 0);
}

// Files are read straight into large places; several threads, or the caller's alone, get them.
TEST(CpuDevice, LargePlacesBeginAtPagesAndAreClear) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const int threads : {1, 3}) {
    const auto device = make_cpu_device();
    device->use_threads(threads);
    std::vector<std::pair<void*, int64_t>> places;
    for (int i = 0; i < 12; ++i) {
      const bool large = i % 2 == 0;
      const int64_t bytes = large ? (i == 6 ? 40 : 1) * ((int64_t{1} << 20) + random() % 100'000)
                                  : 1 + static_cast<int64_t>(random() % 9000);
      auto* const place = static_cast<unsigned char*>(device->allocate(bytes, MemoryTag::kOther));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % (large ? 4096 : 64), 0u);
      for (int64_t at = 0; at < bytes; at += 1000) EXPECT_EQ(place[at], 0);
      std::memset(place, 1, static_cast<size_t>(bytes));
      places.emplace_back(place, bytes);
    }
    for (const auto& [place, bytes] : places) {
      device->deallocate(place, bytes, MemoryTag::kOther);
    }
    device->trim();
    EXPECT_EQ(device->reserved_bytes(), 0);
  }
}

// Small requests are given where addresses are scarce.
TEST(CpuDevice, WorksWithinALimitedAddressSpace) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more addresses than the limit";
#endif
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      const rlimit limit{.rlim_cur = rlim_t{1} << 30, .rlim_max = rlim_t{1} << 30};
      if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
      const auto device = make_cpu_device();
      void* const block = device->allocate(10 << 20, MemoryTag::kOther);
      std::memset(block, 1, 10 << 20);
      device->deallocate(block, 10 << 20, MemoryTag::kOther);
      try {
        device->allocate(int64_t{4} << 30, MemoryTag::kOther);
      } catch (const Error& error) {
        _exit(error.code() == Code::kOutOfMemory ? 0 : 3);
      }
      _exit(4);
    } catch (...) {
      _exit(5);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(CpuDevice, SizesWasteAtMostAnEighth) {
  const auto device = make_cpu_device({.cache = false});
  for (int64_t bytes = 1; bytes < int64_t{1} << 34; bytes = bytes * 9 / 7 + 1) {
    if (bytes > int64_t{1} << 26) break;  // the rule is the same above
    void* p = device->allocate(bytes, MemoryTag::kOther);
    const int64_t taken = device->account().total_now();
    EXPECT_GE(taken, bytes);
    const bool huge = bytes >= int64_t{3} << 19;  // rounded to whole huge pages of 2 MiB
    EXPECT_LE(taken, bytes + bytes / 8 + (huge ? int64_t{2} << 20 : 64)) << bytes;
    device->deallocate(p, bytes, MemoryTag::kOther);
  }
}

TEST(CpuDevice, WithoutACacheMemoryGoesBackAtOnce) {
  const auto device = make_cpu_device({.cache = false});
  void* p = device->allocate(5000, MemoryTag::kOther);
  EXPECT_GT(device->reserved_bytes(), 0);
  device->deallocate(p, 5000, MemoryTag::kOther);
  EXPECT_EQ(device->reserved_bytes(), 0);
}

TEST(CpuDevice, LimitGivesAnErrorWithAccountAndAdvice) {
  const auto device = make_cpu_device({.cache = true, .limit_bytes = int64_t{1} << 20});
  void* held = device->allocate(600000, MemoryTag::kParameters);
  expect_error(Code::kOutOfMemory,
               {"out of memory on the CPU", "activations", "parameters", "total", "reserved",
                "train_micro_batch_size_per_gpu"},
               [&] { device->allocate(600000, MemoryTag::kActivations); });
  // The failure changed nothing, and what fits is still given.
  EXPECT_EQ(device->account().now(MemoryTag::kActivations), 0);
  void* small = device->allocate(200000, MemoryTag::kActivations);
  EXPECT_NE(small, nullptr);
  device->deallocate(small, 200000, MemoryTag::kActivations);
  device->deallocate(held, 600000, MemoryTag::kParameters);
  // Cached blocks of other sizes are given up before a request is refused.
  void* large = device->allocate(900000, MemoryTag::kActivations);
  EXPECT_NE(large, nullptr);
  device->deallocate(large, 900000, MemoryTag::kActivations);
}

TEST(CpuDevice, ImpossibleSizesAreRefused) {
  const auto device = make_cpu_device();
  for (const int64_t bytes : {int64_t{-1}, INT64_MIN, int64_t{1} << 50, INT64_MAX}) {
    expect_error(Code::kOutOfMemory, {"gradients"},
                 [&] { device->allocate(bytes, MemoryTag::kGradients); });
  }
  EXPECT_EQ(device->reserved_bytes(), 0);
}

TEST(CpuDevice, CopiesAndClears) {
  const auto device = make_cpu_device();
  std::vector<int> from = {1, 2, 3}, to(3);
  device->copy(to.data(), from.data(), 12, device->default_stream());
  EXPECT_EQ(to, from);
  device->clear(to.data(), 8, device->default_stream());
  EXPECT_EQ(to, (std::vector<int>{0, 0, 3}));
  device->copy(nullptr, nullptr, 0, device->default_stream());
  device->clear(nullptr, 0, device->default_stream());
  const auto stream = device->create_stream();
  const auto event = stream->record();
  stream->wait(*event);
  event->synchronize();
  stream->synchronize();
  EXPECT_TRUE(event->ready());
}

TEST(CpuDevice, ThreadsShareIt) {
  const auto device = make_cpu_device();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const int64_t bytes = 64 + (i * 37 + t * 1000) % 9000;
        auto* p = static_cast<unsigned char*>(device->allocate(bytes, MemoryTag::kOther));
        std::memset(p, t + 1, static_cast<size_t>(bytes));
        for (int64_t k = 0; k < bytes; k += 61) EXPECT_EQ(p[k], t + 1);
        device->deallocate(p, bytes, MemoryTag::kOther);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device->account().total_now(), 0);
}

TEST(CpuDevice, OutOfMemoryListsUsedTags) {
  const auto device = make_cpu_device();
  void* p = device->allocate(1 << 20, MemoryTag::kKvCache);
  std::string report;
  try {
    fail_out_of_memory(*device, "the CPU", 4096, MemoryTag::kActivations, 8192);
  } catch (const Error& error) {
    report = error.what();
  }
  EXPECT_NE(report.find("kv_cache: 1.00 MiB / 1.00 MiB"), std::string::npos) << report;
  EXPECT_EQ(report.find("gradients"), std::string::npos) << report;
  device->deallocate(p, 1 << 20, MemoryTag::kKvCache);
}

}  // namespace
}  // namespace ds
