// What carries out the pieces that a Queue cuts requests into: io_uring, or threads that block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ds::io {

// One system call's worth of work.
struct Piece {
  int fd = -1;
  bool write = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  int64_t offset = 0;
};

// How a piece ended: bytes moved, or a negative errno.
struct Completion {
  uint32_t slot = 0;
  int64_t result = 0;
};

// Used by one thread at a time. Whoever destroys it has reaped everything.
class Backend {
 public:
  virtual ~Backend() = default;
  // Starts a piece; `slot` comes back with its completion. 0, or the errno why not.
  virtual int submit(const Piece& piece, uint32_t slot) = 0;
  // Fills `out` with what has ended and returns how many; with `block`, waits for at least one.
  // Only called while something is under way.
  virtual size_t reap(bool block, std::span<Completion> out) = 0;
};

// Null when the system refuses it: an old kernel, a sandbox, too many users.
std::unique_ptr<Backend> make_uring(int depth);
// Starts its threads with the first piece.
std::unique_ptr<Backend> make_thread_backend(int threads);

}  // namespace ds::io
