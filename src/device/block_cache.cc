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
  void* pointer = nullptr;
  if (uses_pool()) {
    pointer = take_pooled(size, tag);
  } else {
    pointer = take_cached(size);
    if (pointer == nullptr) pointer = take_fresh(size, tag);
  }
  device_.account().add(tag, size);
  return pointer;
}

void BlockCache::deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept {
  if (pointer == nullptr) return;
  const int64_t size = size_class(bytes);
  device_.account().remove(tag, size);
  keep(pointer, size);
}

// For the pool that the block belongs to, or for all.
void BlockCache::keep(void* pointer, int64_t size) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto pooled = pooled_.find(pointer);
    if (pooled != pooled_.end() || options_.cache) {
      try {
        (pooled != pooled_.end() ? pooled->second->free : cache_)[size].push_back(pointer);
        return;
      } catch (...) {  // no memory for the bookkeeping: give the block back instead
        if (pooled != pooled_.end()) {
          pooled->second->bytes.fetch_sub(size);
          pooled_.erase(pooled);
        }
      }
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

void BlockCache::begin_pool(Pool& pool) {
  const std::lock_guard lock(mutex_);
  DS_CHECK(open_pool_.load() == nullptr, Code::kState, "work is being recorded on ",
           device_.describe(), " already");
  pool_thread_ = std::this_thread::get_id();
  open_pool_.store(&pool);
}

void BlockCache::give_up(Pool& pool) noexcept {
  Blocks free;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(pooled_, [&](const auto& block) { return block.second == &pool; });
    free.swap(pool.free);
    pool.bytes.store(0);
  }
  for (const auto& [size, blocks] : free) {
    for (void* const block : blocks) keep(block, size);
  }
}

void* BlockCache::take_from(Blocks& blocks, int64_t size) {
  const auto found = blocks.find(size);
  if (found == blocks.end() || found->second.empty()) return nullptr;
  void* const pointer = found->second.back();
  found->second.pop_back();
  return pointer;
}

void* BlockCache::take_cached(int64_t size) {
  const std::lock_guard lock(mutex_);
  return take_from(cache_, size);
}

// Nothing is trimmed for it: giving memory back would wait for the device.
void* BlockCache::take_pooled(int64_t size, MemoryTag tag) {
  const std::lock_guard lock(mutex_);
  Pool& pool = *open_pool_.load();
  if (void* const block = take_from(pool.free, size)) return block;
  void* block = take_from(cache_, size);
  if (block == nullptr) {
    block = try_fresh(size);
    if (block == nullptr) {
      fail_out_of_memory(device_, source_.place(), size, tag, options_.limit_bytes);
    }
    system_allocations_.fetch_add(1);
  }
  try {
    pooled_[block] = &pool;
  } catch (...) {
    release(block, size);
    throw;
  }
  pool.bytes.fetch_add(size);
  return block;
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
