// Keeps freed memory of a device for reuse, sorted by size class, and counts every byte. All
// devices allocate through this; they only differ in where fresh blocks come from.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
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
  void* take_fresh(int64_t size, MemoryTag tag);
  void* try_fresh(int64_t size);
  bool reserve(int64_t size) noexcept;
  void release(void* block, int64_t size) noexcept;

  Device& device_;
  BlockSource& source_;
  const BlockCacheOptions options_;
  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> cache_;
  std::atomic<int64_t> reserved_{0};
  std::atomic<int64_t> system_allocations_{0};
};

}  // namespace ds
