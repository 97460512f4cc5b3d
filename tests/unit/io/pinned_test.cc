// Pinned memory: it is locked, is known by any address within, and goes back once.
#include "io/pinned.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "full_run.h"
#include "unit/io/support.h"

namespace ds::io::test {
namespace {

int64_t locked_kib() {
  std::ifstream file("/proc/self/status");
  std::string key, rest;
  while (file >> key) {
    int64_t kib = 0;
    if (key == "VmLck:" && file >> kib) return kib;
    std::getline(file, rest);
  }
  return -1;
}

TEST(Pinned, IsLockedAndKnownByAnyAddressWithin) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an mlock that locks nothing";
  const int64_t before = locked_kib();
  std::byte* const memory = allocate_pinned(100'000);
  EXPECT_GE(locked_kib() - before, 97);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0u);
  EXPECT_TRUE(std::all_of(memory, memory + 100'000, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(is_pinned(memory, 100'000));
  EXPECT_TRUE(is_pinned(memory + 99'999, 1));
  EXPECT_FALSE(is_pinned(memory + 50'000, 100'000));
  EXPECT_FALSE(is_pinned(memory - 1, 1));
  EXPECT_FALSE(is_pinned(&before, 1));
  EXPECT_FALSE(is_pinned(nullptr, 0));
  EXPECT_FALSE(free_pinned(memory + 4096)) << "not where it begins";
  EXPECT_TRUE(free_pinned(memory));
  EXPECT_FALSE(free_pinned(memory));
  EXPECT_FALSE(is_pinned(memory, 1));
  EXPECT_EQ(locked_kib(), before);
}

TEST(Pinned, RefusesImpossibleSizes) {
  EXPECT_EQ(error_of([] { allocate_pinned(0); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { allocate_pinned(INT64_MAX); }).code(), Code::kOutOfMemory);
  EXPECT_EQ(error_of([] { allocate_pinned(int64_t{1} << 46); }).code(), Code::kOutOfMemory);
}

// In a process of its own, and not as root, for whom the limit does not hold.
TEST(Pinned, SaysWhatTheLimitIs) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an mlock that locks nothing";
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit small{8192, 8192};
    int code = 1;
    if (::setrlimit(RLIMIT_MEMLOCK, &small) != 0) ::_exit(3);
    if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(4);
    try {
      allocate_pinned(100'000);
    } catch (const Error& error) {
      const bool says = error.message().find("8192 bytes in all") != std::string::npos;
      code = error.code() == Code::kOutOfMemory && says ? 0 : 2;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Pinned, FromSeveralThreads) {
  const auto work = [] {
    for (int i = 0; i < 50; ++i) {
      std::byte* const memory = allocate_pinned(8192);
      EXPECT_TRUE(is_pinned(memory + 100, 1000));
      EXPECT_TRUE(free_pinned(memory));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ds::io::test
