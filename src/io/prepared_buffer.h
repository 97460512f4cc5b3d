// Memory whose pages threads of its own ask the system for, front to back, while others work: some
// virtual machines get memory from their host more slowly than bytes from a disk.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "io/buffer.h"

namespace ds::io {

// One thread uses it, and nothing of it before it is ready.
class PreparedBuffer {
 public:
  // `threads` ask from now on. Throws Error(kOutOfMemory).
  PreparedBuffer(int64_t bytes, int threads);
  ~PreparedBuffer();
  PreparedBuffer(const PreparedBuffer&) = delete;
  PreparedBuffer& operator=(const PreparedBuffer&) = delete;

  std::span<std::byte> bytes() const noexcept { return buffer_.bytes(); }

  // So many bytes from the front have their pages.
  int64_t ready() const noexcept;
  void wait_for(int64_t bytes) noexcept;
  // Pages behind the first so many bytes are not asked for, unless somebody waits for them.
  void limit(int64_t bytes) noexcept;
  // Bytes in a second of asking; 0: not known yet.
  double rate() const noexcept;

 private:
  void ask() noexcept;

  Buffer buffer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> ready_;                         // by part
  int64_t first_open_ = 0, next_ = 0, wanted_ = 0;  // parts
  int asking_ = 0;                                  // threads
  double seconds_ = 0;                              // while some did
  std::chrono::steady_clock::time_point began_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ds::io
