// Reads and writes that threads of their own carry on while callers do something else.
//
// Reads and writes have queues and threads of their own, so that neither waits for the other, and
// each direction as many as `parallelism`, which share a request: each takes one piece of it. So a
// write must have been waited for before its range is read.
//
// Safe from several threads.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "io/queue.h"

namespace ds::io {

struct EngineOptions {
  QueueOptions queue = {};  // of each thread
  int parallelism = 1;      // threads of each direction, 1 to 64
};

class Engine {
 public:
  using Ticket = uint64_t;
  // Runs on one of the threads when all bytes of a request are moved, before its wait returns. What
  // it throws is how the request ended. It goes, with what it holds, when the request has ended.
  using Finish = std::function<void()>;
  struct After {
    Finish finish = {};
    bool alone = false;  // wait_all passes over it: whoever started it waits for its ticket
  };

  // Throws Error(kUnsupported) where the backend that is named cannot be used.
  explicit Engine(const EngineOptions& options = {});
  // Starts nothing more and waits for the blocks that are under way.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // File and memory stay until a wait for the request has returned or the engine is gone; `after`
  // may keep them.
  Ticket read(const File& file, int64_t offset, std::span<std::byte> out, After after);
  Ticket read(const File& file, int64_t offset, std::span<std::byte> out) {
    return read(file, offset, out, After());
  }
  Ticket write(const File& file, int64_t offset, std::span<const std::byte> bytes, After after);
  Ticket write(const File& file, int64_t offset, std::span<const std::byte> bytes) {
    return write(file, offset, bytes, After());
  }

  // Whether a request has ended, well or not.
  bool done(Ticket ticket) const;
  // Waits for a request; throws if it failed. False where a wait has returned or thrown before.
  bool wait(Ticket ticket);
  // Waits for the requests that nobody has waited for yet, and returns how many they were; where
  // some failed, throws what the oldest of them says, when all have ended.
  int64_t wait_all();
  // Starts nothing more of the requests there are, waits for the blocks that are under way, and
  // returns how many requests have not been carried out: a wait for one throws Error(kAborted).
  int64_t cancel();

  // What carries whole pages: never kBest.
  BackendKind backend() const;
  const EngineOptions& options() const { return options_; }

 private:
  class Worker;
  struct Request {
    int parts = 0;  // that have not ended
    std::exception_ptr error;
    int64_t error_offset = 0;
    std::atomic<bool> cancelled{false};
    After after;
  };
  struct Part {
    std::shared_ptr<Request> request;
    const File* file;
    bool write;
    int64_t offset;
    std::byte* data;
    int64_t bytes;
  };
  using Workers = std::vector<std::unique_ptr<Worker>>;

  Ticket start(const File& file, bool write, int64_t offset, std::span<std::byte> data,
               After after);
  std::vector<Part> cut(const Part& whole) const;
  void end_part(Part& part, std::exception_ptr error) noexcept;
  static bool ended(const Request& request) { return request.parts == 0; }

  const EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<Ticket, std::shared_ptr<Request>> requests_;  // that nobody has waited for yet
  Ticket next_ = 1;
  std::array<Workers, 2> workers_;  // of reads, of writes; last: they end before what they use
};

}  // namespace ds::io
