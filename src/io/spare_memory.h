// Memory for file I/O that is kept for the next use: fresh pages cost more time than moving their
// bytes does.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <list>
#include <mutex>
#include <utility>

#include "io/buffer.h"

namespace ds::io {

// What is taken, and what waits for that, is together never more than the most that was taken at
// once since the last clear(): keeping memory needs none. Safe from several threads.
template <class Memory>
class SpareMemory {
 public:
  // Pieces of more bytes than `largest` are not kept: hardly two of them are alike.
  explicit SpareMemory(int64_t largest) : largest_(size_class(largest)) {}

  // What is taken for so many bytes: at most an eighth more. One of eight sizes of each octave, so
  // that a size which hardly differs finds a kept one.
  static int64_t size_class(int64_t bytes) {
    const int64_t pages = (bytes + kAlignment - 1) / kAlignment;
    const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(pages)) / 8);
    return (step <= 1 ? pages : (pages + step - 1) / step * step) * kAlignment;
  }

  // Of size_class(bytes): one that was kept, or what make(size) makes.
  template <class Make>
  Memory take(int64_t bytes, const Make& make) {
    const int64_t size = size_class(bytes);
    std::list<Kept> found, surplus;  // end outside the lock
    {
      const std::lock_guard lock(mutex_);
      const auto alike = std::find_if(kept_.begin(), kept_.end(),
                                      [size](const Kept& one) { return one.size == size; });
      taken_ += size;
      most_taken_ = std::max(most_taken_, taken_);
      if (alike != kept_.end()) {
        kept_bytes_ -= size;
        found.splice(found.begin(), kept_, alike);
        return std::move(found.front().memory);
      }
      while (taken_ + kept_bytes_ > most_taken_) {
        kept_bytes_ -= kept_.back().size;
        surplus.splice(surplus.begin(), kept_, std::prev(kept_.end()));
      }
    }
    surplus.clear();
    try {
      return make(size);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      taken_ -= size;
      throw;
    }
  }

  // Keeps what was taken for so many bytes, or frees it.
  void give(Memory memory, int64_t bytes) noexcept {
    const int64_t size = size_class(bytes);
    const std::lock_guard lock(mutex_);
    taken_ -= size;
    if (size > largest_ || taken_ + kept_bytes_ + size > most_taken_) return;
    try {
      kept_.push_front({size, std::move(memory)});
      kept_bytes_ += size;
    } catch (const std::bad_alloc&) {
      // Then it is freed instead of kept.
    }
  }

  // Frees what is kept but for so many bytes, and forgets how much was taken before.
  void clear(int64_t keep = 0) noexcept {
    std::list<Kept> freed;
    const std::lock_guard lock(mutex_);
    while (kept_bytes_ > keep) {
      kept_bytes_ -= kept_.back().size;
      freed.splice(freed.begin(), kept_, std::prev(kept_.end()));
    }
    most_taken_ = taken_ + kept_bytes_;
  }

 private:
  struct Kept {
    int64_t size;
    Memory memory;
  };

  const int64_t largest_;
  std::mutex mutex_;
  std::list<Kept> kept_;  // what was given last first
  int64_t kept_bytes_ = 0, taken_ = 0, most_taken_ = 0;
};

}  // namespace ds::io
