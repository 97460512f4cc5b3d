// Keeps freed memory of a device for reuse, sorted by size class, and counts every byte. All
// devices allocate through this; they only differ in where fresh blocks come from.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/memory.h"

namespace ds {

class Device;

// Where fresh blocks come from.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Null when there is no memory; other failures throw.
  virtual void* take(int64_t size) = 0;
  // The cache gives back only what it took, and each block once.
  virtual void give(void* block, int64_t size) noexcept = 0;
  // For "out of memory on <place>".
  virtual std::string place() const = 0;
};

struct BlockCacheOptions {
  bool cache = true;        // false: freed blocks go back to the source at once
  int64_t limit_bytes = 0;  // of reserved bytes; 0 = no limit beyond the source's
  int64_t alignment = 64;   // small sizes are multiples of this power of two, 512 at most
};

class BlockCache {
 public:
  static constexpr int64_t kLargeUnit = int64_t{2} << 20;  // large sizes are multiples of this

  // `device` names itself in error messages and owns the account.
  BlockCache(Device& device, BlockSource& source, const BlockCacheOptions& options);
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  using Blocks = std::map<int64_t, std::vector<void*>>;  // by size
  // Blocks that stay together until they are given up. Those that are free then go back to the
  // cache, the others follow when they are freed.
  struct Pool {
    Blocks free;
    std::atomic<int64_t> bytes{0};  // of all its blocks
  };
  // Until end_pool() the calling thread takes blocks from the pool, which takes them from the cache
  // or the source; nothing is given back to the source for them.
  void begin_pool(Pool& pool);
  void end_pool() noexcept { open_pool_.store(nullptr); }
  void give_up(Pool& pool) noexcept;
  // Whether the calling thread is between the two.
  bool uses_pool() const noexcept {
    return open_pool_.load() != nullptr && pool_thread_ == std::this_thread::get_id();
  }

  // As Device's functions of these names.
  void* allocate(int64_t bytes, MemoryTag tag);
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept;
  void trim() noexcept;
  int64_t reserved_bytes() const noexcept { return reserved_.load(); }
  int64_t system_allocations() const noexcept { return system_allocations_.load(); }

  // The size of the block that serves a request: slightly different requests share blocks, wasting
  // at most 1/8 beyond the alignment and whole large units.
  int64_t size_class(int64_t bytes) const noexcept;

 private:
  void* take_cached(int64_t size);
  void* take_pooled(int64_t size, MemoryTag tag);
  void keep(void* pointer, int64_t size) noexcept;
  static void* take_from(Blocks& blocks, int64_t size);
  void* take_fresh(int64_t size, MemoryTag tag);
  void* try_fresh(int64_t size);
  bool reserve(int64_t size) noexcept;
  void release(void* block, int64_t size) noexcept;

  Device& device_;
  BlockSource& source_;
  const BlockCacheOptions options_;
  std::mutex mutex_;
  Blocks cache_;
  std::map<void*, Pool*> pooled_;  // blocks of pools, free or not
  std::atomic<Pool*> open_pool_{nullptr};
  std::atomic<std::thread::id> pool_thread_;  // written before it
  std::atomic<int64_t> reserved_{0};
  std::atomic<int64_t> system_allocations_{0};
};

}  // namespace ds
