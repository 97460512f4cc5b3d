// Memory for file I/O: whole huge pages where the system has them, because a device takes a request
// in one huge page much faster than one scattered over 4 KiB pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "device/memory.h"

namespace ds::io {

// What unbuffered I/O asks of offsets, lengths and addresses; no device in use asks for more.
inline constexpr int64_t kAlignment = 4096;

// Aligned to a huge page from 2 MiB up, else to kAlignment; not cleared. Counted under kIo of
// `account`, which must outlive it. Throws Error(kOutOfMemory).
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes, MemoryAccount* account = nullptr);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  int64_t size() const noexcept { return size_; }
  std::span<std::byte> bytes() const noexcept { return {data_, static_cast<size_t>(size_)}; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  MemoryAccount* account_ = nullptr;
};

// Buffers of one size, kept for the next use: fresh pages cost as much as the I/O. Safe from
// several threads.
class BufferPool {
 public:
  explicit BufferPool(int64_t buffer_bytes, MemoryAccount* account = nullptr)
      : buffer_bytes_(buffer_bytes), account_(account) {}

  Buffer take();
  void give(Buffer buffer) noexcept;
  int64_t buffer_bytes() const noexcept { return buffer_bytes_; }

 private:
  const int64_t buffer_bytes_;
  MemoryAccount* const account_;
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

// memcpy past the caches, for data that nobody reads again soon: saves reading the target first.
void stream_copy(std::byte* target, const std::byte* source, size_t bytes) noexcept;

}  // namespace ds::io
