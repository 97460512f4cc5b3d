#include "device/block_cache.h"

#include "base/error.h"
#include "device/device.h"

namespace ds {

BlockCache::BlockCache(Device& device, BlockSource& source, const BlockCacheOptions& options)
    : device_(device), source_(source), options_(options) {}

BlockCache::~BlockCache() { trim(); }

int64_t BlockCache::size_class(int64_t bytes) const noexcept {
  const int64_t unit = options_.alignment;
  if (bytes <= 4096) return (bytes + unit - 1) / unit * unit;
  int64_t step = 512;
  while (step * 16 < bytes) step *= 2;
  const int64_t rounded = (bytes + step - 1) / step * step;
  return rounded < kLargeUnit ? rounded : (rounded + kLargeUnit - 1) / kLargeUnit * kLargeUnit;
}

void* BlockCache::allocate(int64_t bytes, MemoryTag tag) {
  if (bytes == 0) return nullptr;
  check_request(bytes, tag);
  const int64_t size = size_class(bytes);
  void* pointer = take_cached(size);
  if (pointer == nullptr) pointer = take_fresh(size, tag);
  device_.account().add(tag, size);
  return pointer;
}

void BlockCache::deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept {
  if (pointer == nullptr) return;
  const int64_t size = size_class(bytes);
  device_.account().remove(tag, size);
  if (options_.cache) {
    const std::lock_guard lock(mutex_);
    try {
      cache_[size].push_back(pointer);
      return;
    } catch (...) {  // no memory for the bookkeeping: give the block back instead
    }
  }
  release(pointer, size);
}

// Holds the lock throughout: whoever trims next finds this memory given back, not on its way.
void BlockCache::trim() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [size, blocks] : cache_) {
    for (void* block : blocks) release(block, size);
  }
  cache_.clear();
}

void* BlockCache::take_cached(int64_t size) {
  const std::lock_guard lock(mutex_);
  const auto found = cache_.find(size);
  if (found == cache_.end() || found->second.empty()) return nullptr;
  void* const pointer = found->second.back();
  found->second.pop_back();
  return pointer;
}

void* BlockCache::take_fresh(int64_t size, MemoryTag tag) {
  void* pointer = try_fresh(size);
  if (pointer == nullptr) {
    trim();
    pointer = try_fresh(size);
  }
  if (pointer == nullptr) {
    fail_out_of_memory(device_, source_.place(), size, tag, options_.limit_bytes);
  }
  system_allocations_.fetch_add(1);
  return pointer;
}

// Null when the limit or the source does not allow it. Counted first, so that threads that
// allocate together cannot pass the limit.
void* BlockCache::try_fresh(int64_t size) {
  if (!reserve(size)) return nullptr;
  void* pointer = nullptr;
  try {
    pointer = source_.take(size);
  } catch (...) {
    reserved_.fetch_sub(size);
    throw;
  }
  if (pointer == nullptr) reserved_.fetch_sub(size);
  return pointer;
}

bool BlockCache::reserve(int64_t size) noexcept {
  const int64_t limit = options_.limit_bytes;
  int64_t held = reserved_.load();
  do {
    if (limit > 0 && size > limit - held) return false;
  } while (!reserved_.compare_exchange_weak(held, held + size));
  return true;
}

void BlockCache::release(void* block, int64_t size) noexcept {
  source_.give(block, size);
  reserved_.fetch_sub(size);
}

}  // namespace ds
