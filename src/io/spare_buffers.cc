#include "io/spare_buffers.h"

#include <bit>
#include <utility>

namespace ds::io {

// One of eight of each octave, so that a size which hardly differs finds its buffer.
int64_t SpareBuffers::size_class(int64_t bytes) {
  const int64_t pages = (bytes + kAlignment - 1) / kAlignment;
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(pages)) / 8);
  return (step <= 1 ? pages : (pages + step - 1) / step * step) * kAlignment;
}

Buffer SpareBuffers::take(int64_t bytes) {
  const int64_t size = size_class(bytes);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = kept_.find(size); it != kept_.end()) {
      Buffer buffer = std::move(it->second);
      kept_.erase(it);
      kept_bytes_ -= size;
      return buffer;
    }
  }
  return Buffer(size, account_);
}

void SpareBuffers::give(Buffer buffer) noexcept {
  const int64_t size = buffer.size();
  const std::lock_guard lock(mutex_);
  if (size == 0 || kept_bytes_ + size > most_bytes_) return;
  try {
    kept_.emplace(size, std::move(buffer));
    kept_bytes_ += size;
  } catch (const std::bad_alloc&) {
    // Then it is freed instead of kept.
  }
}

void SpareBuffers::clear() noexcept {
  const std::lock_guard lock(mutex_);
  kept_.clear();
  kept_bytes_ = 0;
}

}  // namespace ds::io
