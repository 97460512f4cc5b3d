// What carries out the pieces that a Queue cuts requests into: io_uring, the kernel's older
// asynchronous I/O through libaio, or threads that block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ds::io {

enum class BackendKind {
  kBest,  // the first of the following that works here
  kUring,
  kLibaio,
  kThreads,
};
std::string_view backend_name(BackendKind kind);  // "auto", "io_uring", "libaio", "threads"
std::optional<BackendKind> backend_of_name(std::string_view name);

// One system call's worth of work.
struct Piece {
  int fd = -1;
  bool write = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  int64_t offset = 0;
  uint32_t slot = 0;  // comes back with its completion
};

// How a piece ended: bytes moved, or a negative errno.
struct Completion {
  uint32_t slot = 0;
  int64_t result = 0;
};

// How many pieces were started, in their order, and the errno why the next one was not; 0 where it
// may be tried again at once.
struct Submitted {
  size_t count = 0;
  int error = 0;
};

// Used by one thread at a time. Whoever destroys it has reaped everything.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendKind kind() const = 0;
  // Starts pieces with one system call.
  virtual Submitted submit(std::span<const Piece* const> pieces) = 0;
  // Fills `out` with what has ended and returns how many; with `block`, waits for at least one.
  // Only called while something is under way.
  virtual size_t reap(bool block, std::span<Completion> out) = 0;
};

// io_uring or libaio for so many pieces at once. Null, with the reason, when the library is not
// there or the system refuses it: an old kernel, a sandbox, too many users.
std::unique_ptr<Backend> make_uring(int depth, std::string& reason);
std::unique_ptr<Backend> make_libaio(int depth, std::string& reason);
// Starts its threads with the first pieces, of which there are at most `depth` at once.
std::unique_ptr<Backend> make_thread_backend(int threads, int depth);

// The backend of a kind, which is neither the best nor threads: Error(kUnsupported) says why it
// cannot be used here.
std::unique_ptr<Backend> make_async_backend(BackendKind kind, int depth);
// The best for so many pieces at once; null for threads.
std::unique_ptr<Backend> make_best_backend(int depth);
// Why a kind cannot be used here; "" when it can.
std::string backend_refusal(BackendKind kind);

}  // namespace ds::io
