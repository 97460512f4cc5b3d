// A queue of reads and writes that go on while the caller does something else.
//
// Requests are cut into blocks, of which a number is under way at once. Whole pages of the file go
// past the page cache, by way of an aligned buffer where the request's memory is not; a beginning
// and an end that are no whole pages, and everything where the file system refuses that, go through
// it. io_uring or libaio carries the former, threads the latter, and all where there is neither.
// Results are the same.
//
// One thread at a time uses a queue; different queues do not know of each other. The memory and the
// file of a request stay until its wait returns or the queue is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/backend.h"
#include "io/buffer.h"
#include "io/file.h"

namespace ds::io {

struct QueueOptions {
  int depth = 16;                          // blocks under way at once, 1 to 4096
  int64_t block_bytes = int64_t{1} << 20;  // a multiple of kAlignment
  int threads = 4;                         // where threads carry blocks
  BackendKind backend = BackendKind::kBest;
  bool single_submit = false;  // each block with a system call of its own, else as many as fit
  bool overlap = true;         // a block that ends makes room for the next; else all that are under
                               // way end before more begin
  // What carries blocks out goes through this first: for tests that make it fail.
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> wrap = nullptr;
};

class Queue {
 public:
  using Ticket = uint64_t;

  explicit Queue(const QueueOptions& options = {});
  // Starts nothing more and waits for the blocks that are under way.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Ticket read(const File& file, int64_t offset, std::span<std::byte> out);
  Ticket write(const File& file, int64_t offset, std::span<const std::byte> bytes);

  // Whether a request has ended, well or not. Never blocks on the device.
  bool done(Ticket ticket);
  // Waits for a request; throws if it failed, naming the file and the place.
  void wait(Ticket ticket);
  // Waits for all; throws the first failure that no wait has told yet.
  void wait_all();
  // Waits until one more block has ended, where any is under way, and starts what then fits.
  void advance();
  // Starts nothing more of a request: unless it has ended, it ends with Error(kAborted) when its
  // blocks under way have.
  void cancel(Ticket ticket);

  // What carries whole pages: never kBest.
  BackendKind backend() const { return async_ ? async_->kind() : BackendKind::kThreads; }

 private:
  struct Request {
    const File* file;
    bool write;
    bool through_cache;  // whole pages too
    std::byte* data;
    int64_t offset;
    int64_t bytes;
    int64_t issued = 0;          // bytes handed out as blocks
    int64_t blocks = 0;          // under way
    std::optional<Error> error;  // of the failed block that lies first
    int64_t error_offset = 0;
    bool told = false;  // a wait has thrown the error
    bool ended() const { return blocks == 0 && (issued == bytes || error); }
  };
  struct Slot {
    Ticket ticket = 0;
    Piece piece;
    Backend* backend = nullptr;  // which has the piece, where it is under way
    Buffer bounce;               // what the piece moves, where `target` is not aligned
    std::byte* target = nullptr;
    size_t target_bytes = 0;
  };

  Ticket add(const File& file, bool write, int64_t offset, std::byte* data, size_t bytes);
  Request& request(Ticket ticket) { return requests_[static_cast<size_t>(ticket - first_)]; }
  void issue();
  void issue_block(Ticket ticket);
  bool take_bounce(Slot& slot);
  void submit_staged();
  void give_to_threads(uint32_t slot);
  bool under_way(const Backend* backend) const;
  void complete(const Completion& completion);
  bool goes_on(Slot& slot, int64_t result);
  void end_block(uint32_t slot, bool well);
  void reap(Backend& backend, bool block);
  void poll();
  Backend& threads();
  static void fail_request(Request& request, int64_t offset, Error error);
  void forget_ended();

  const QueueOptions options_;
  BufferPool bounce_;
  std::unique_ptr<Backend> async_, threads_;  // either may be missing
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> staged_;     // slots whose pieces `async_` is to start, oldest first
  std::vector<const Piece*> batch_;  // of one submission
  std::vector<Completion> completions_;
  std::deque<Request> requests_;  // tickets first_, first_ + 1, ...
  Ticket first_ = 1;
  Ticket next_issue_ = 1;  // the first request with blocks to hand out
};

}  // namespace ds::io
