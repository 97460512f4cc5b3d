// Buffers of several sizes that are kept for the next use, so many bytes of them at most.
#pragma once

#include <map>
#include <mutex>

#include "io/buffer.h"

namespace ds::io {

// Safe from several threads.
class SpareBuffers {
 public:
  // Buffers that it makes are counted under kIo of `account`, which must outlive them.
  SpareBuffers(int64_t most_bytes, MemoryAccount* account)
      : most_bytes_(most_bytes), account_(account) {}

  // What is taken for so many bytes: at most an eighth more.
  static int64_t size_class(int64_t bytes);
  // At least so large.
  Buffer take(int64_t bytes);
  // Keeps it, or frees it where there is no room for it.
  void give(Buffer buffer) noexcept;
  // Frees what is kept.
  void clear() noexcept;

 private:
  const int64_t most_bytes_;
  MemoryAccount* const account_;
  std::mutex mutex_;
  std::multimap<int64_t, Buffer> kept_;  // by size
  int64_t kept_bytes_ = 0;
};

}  // namespace ds::io
