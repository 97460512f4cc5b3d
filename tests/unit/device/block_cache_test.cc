// The block cache on a source that counts: limits, failures, every block given back once.
#include "device/block_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

using testing::expect_error;

class CountingSource : public BlockSource {
 public:
  ~CountingSource() override { EXPECT_TRUE(blocks_.empty()) << "blocks were kept"; }

  void* take(int64_t size) override {
    if (broken) fail(Code::kDevice, "the source is broken");
    if (during_take) during_take();
    const std::lock_guard lock(mutex_);
    held_ += size;
    most = std::max(most, held_);
    void* const block = std::malloc(1);
    blocks_[block] = size;
    return block;
  }
  void give(void* block, int64_t size) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(block);
    const bool known = found != blocks_.end() && found->second == size;
    EXPECT_TRUE(known);
    if (!known) return;
    blocks_.erase(found);
    held_ -= size;
    std::free(block);
  }
  std::string place() const override { return "a test"; }

  std::atomic<bool> broken{false};
  std::function<void()> during_take;
  int64_t most = 0;

 private:
  std::mutex mutex_;
  std::map<void*, int64_t> blocks_;
  int64_t held_ = 0;
};

TEST(BlockCache, SizeClassesCoverTheRequestAndAreFixedPoints) {
  const auto device = make_cpu_device();
  CountingSource source;
  for (const int64_t alignment : {64, 256, 512}) {
    const BlockCache cache(*device, source, {.alignment = alignment});
    int64_t last = 0;
    for (int64_t bytes = 1; bytes < int64_t{1} << 49; bytes = bytes * 9 / 8 + 1) {
      const int64_t size = cache.size_class(bytes);
      ASSERT_GE(size, bytes);
      ASSERT_GE(size, last) << "not monotonic at " << bytes;
      ASSERT_EQ(size % alignment, 0) << bytes;
      ASSERT_EQ(cache.size_class(size), size) << bytes;
      const bool large = size >= BlockCache::kLargeUnit;
      ASSERT_LE(size, bytes + bytes / 8 + (large ? BlockCache::kLargeUnit : alignment)) << bytes;
      last = size;
    }
  }
}

TEST(BlockCache, ThreadsTogetherStayWithinTheLimit) {
  const auto device = make_cpu_device();
  CountingSource source;
  {
    constexpr int64_t kLimit = 40000;
    BlockCache cache(*device, source, {.limit_bytes = kLimit});
    std::atomic<int> served{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 500; ++i) {
          const int64_t bytes = 1000 + (i * 977 + t * 3000) % 12000;
          try {
            void* const block = cache.allocate(bytes, MemoryTag::kOther);
            served.fetch_add(1);
            cache.deallocate(block, bytes, MemoryTag::kOther);
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::kOutOfMemory);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(served.load(), 500);
    EXPECT_LE(source.most, kLimit);
    EXPECT_LE(cache.reserved_bytes(), kLimit);
    EXPECT_EQ(device->account().total_now(), 0);
  }
}

TEST(BlockCache, MemoryOnItsWayCountsForTheLimit) {
  const auto device = make_cpu_device();
  CountingSource source;
  BlockCache cache(*device, source, {.limit_bytes = 10000});
  int depth = 0;
  source.during_take = [&] {  // as another thread would, while the source is slow
    if (++depth > 1) return;
    expect_error(Code::kOutOfMemory, {"out of memory on a test", "limit of 9.77 KiB"},
                 [&] { cache.allocate(6000, MemoryTag::kOther); });
  };
  void* const block = cache.allocate(6000, MemoryTag::kOther);
  EXPECT_EQ(depth, 1);
  EXPECT_LE(source.most, 10000);
  cache.deallocate(block, 6000, MemoryTag::kOther);
}

TEST(BlockCache, ABrokenSourceChangesNothing) {
  const auto device = make_cpu_device();
  CountingSource source;
  BlockCache cache(*device, source, {.limit_bytes = 10000});
  source.broken = true;
  for (int i = 0; i < 5; ++i) {
    expect_error(Code::kDevice, {"broken"}, [&] { cache.allocate(8000, MemoryTag::kOther); });
  }
  EXPECT_EQ(cache.reserved_bytes(), 0);
  EXPECT_EQ(cache.system_allocations(), 0);
  EXPECT_EQ(device->account().total_peak(), 0);
  source.broken = false;
  void* const block = cache.allocate(8000, MemoryTag::kOther);
  EXPECT_EQ(cache.system_allocations(), 1);
  cache.deallocate(block, 8000, MemoryTag::kOther);
}

}  // namespace
}  // namespace ds
