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

// What is allocated between begin_pool() and end_pool() stays with the pool until that is given up.
TEST(BlockCache, PoolsKeepTheirBlocksTogether) {
  const auto device = make_cpu_device();
  CountingSource source;
  BlockCache cache(*device, source, {});
  void* const before = cache.allocate(1024, MemoryTag::kOther);
  cache.deallocate(before, 1024, MemoryTag::kOther);

  BlockCache::Pool pool;
  cache.begin_pool(pool);
  EXPECT_TRUE(cache.uses_pool());
  expect_error(Code::kState, {"recorded", "already"}, [&] {
    BlockCache::Pool other;
    cache.begin_pool(other);
  });
  void* const first = cache.allocate(1000, MemoryTag::kOther);
  EXPECT_EQ(first, before) << "a cached block serves the pool";
  void* const second = cache.allocate(1000, MemoryTag::kOther);
  EXPECT_EQ(pool.bytes.load(), 2048);
  cache.deallocate(first, 1000, MemoryTag::kOther);
  std::thread([&] {
    EXPECT_FALSE(cache.uses_pool()) << "another thread's work is not recorded";
    void* const apart = cache.allocate(1000, MemoryTag::kOther);
    EXPECT_NE(apart, first) << "a free block of a pool serves the pool alone";
    cache.deallocate(apart, 1000, MemoryTag::kOther);
  }).join();
  EXPECT_EQ(cache.allocate(1000, MemoryTag::kOther), first) << "the pool's free block comes first";
  cache.end_pool();
  EXPECT_FALSE(cache.uses_pool());

  cache.deallocate(first, 1000, MemoryTag::kOther);  // free again, but in the pool
  cache.trim();
  EXPECT_EQ(cache.reserved_bytes(), 2048) << "trimming leaves a pool's blocks";
  cache.give_up(pool);  // `first` goes back to the cache at once, `second` when it is freed
  EXPECT_EQ(pool.bytes.load(), 0);
  cache.trim();
  EXPECT_EQ(cache.reserved_bytes(), 1024);
  cache.deallocate(second, 1000, MemoryTag::kOther);
  cache.trim();
  EXPECT_EQ(cache.reserved_bytes(), 0);
}

// Memory is not trimmed for a pool: giving it back would wait for work that is being recorded.
TEST(BlockCache, APoolThatFindsNoMemorySaysSo) {
  const auto device = make_cpu_device();
  CountingSource source;
  BlockCache cache(*device, source, {.limit_bytes = 10000});
  void* const kept = cache.allocate(6000, MemoryTag::kOther);
  cache.deallocate(kept, 6000, MemoryTag::kOther);
  BlockCache::Pool pool;
  cache.begin_pool(pool);
  expect_error(Code::kOutOfMemory, {"out of memory on a test", "limit of 9.77 KiB"},
               [&] { cache.allocate(8000, MemoryTag::kOther); });
  EXPECT_EQ(pool.bytes.load(), 0);
  cache.end_pool();
  void* const served =
      cache.allocate(8000, MemoryTag::kOther);  // outside of it the cache is trimmed
  cache.deallocate(served, 8000, MemoryTag::kOther);
  cache.give_up(pool);
}

}  // namespace
}  // namespace ds
