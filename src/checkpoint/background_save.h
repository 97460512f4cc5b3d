// Saving beside the training: the snapshot that a CheckpointWriter holds is written, made durable
// and published by a thread of its own, which needs next to no CPU for it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "checkpoint/writer.h"
#include "io/buffer.h"

namespace ds {

// One save at a time. Memory: as much as the largest checkpoint, kept for the next one. Used by one
// thread at a time.
class BackgroundSave {
 public:
  // Memory is counted under kIo of `account`, which outlives this.
  explicit BackgroundSave(MemoryAccount* account)
      : buffers_(blob_block_bytes(kDefaultChunkBytes), account) {}
  // Waits; a failure that nobody asked for is logged.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // For BlobOptions::hold. Ask after wait(), so that the buffers of the save before are free.
  io::BufferPool* buffers() noexcept { return &buffers_; }
  // Begins to commit; where the system has no thread to give, commits before it returns. There is
  // no save under way.
  void start(std::unique_ptr<CheckpointWriter> writer, std::string tag);
  // The same with whatever makes this rank's part of the checkpoint; what it holds is freed when it
  // has run.
  void start(std::function<void()> job, std::string tag);
  // Waits for the save under way. Throws if it failed, once.
  void wait();
  // Waits, and leaves a failure for wait() to tell.
  void join() noexcept;

 private:
  void run() noexcept;

  io::BufferPool buffers_;
  std::function<void()> job_;
  std::string tag_;
  std::optional<Error> error_;
  std::thread thread_;
};

}  // namespace ds
