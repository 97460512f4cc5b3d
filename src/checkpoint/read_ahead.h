// Reads a blob front to back faster than its reader asks: blocks further on are fetched past the
// page cache while earlier ones are checked and copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/manifest.h"
#include "io/buffer.h"
#include "io/queue.h"

namespace ds {

// One per checkpoint; it follows one blob at a time. Holds up to 64 MiB while somebody reads in
// order, and nothing before that.
class ReadAhead {
 public:
  struct Result {
    std::optional<uint64_t> damaged;  // the first chunk that does not match its checksum
  };

  // Checks [offset, offset + bytes) of a blob and copies it to `out`. Nothing when reading ahead
  // would not help: small files, jumps, another thread that is at it. `record` tells blobs apart by
  // its address.
  std::optional<Result> read(const std::filesystem::path& path, const BlobRecord& record,
                             uint64_t offset, uint64_t bytes, std::byte* out);

  // Gives up what was fetched, so that the disk is asked anew.
  void reset() noexcept {
    const std::lock_guard lock(mutex_);
    forget();
  }

  // Shares the checking and copying from now on; null: the calling thread does it alone.
  void use_threads(ThreadPool* pool) noexcept { pool_ = pool; }

 private:
  enum class State : uint8_t { kUnknown, kGood, kDamaged };
  struct Block {
    uint64_t index = 0;
    io::Buffer buffer;
    io::Queue::Ticket ticket = 0;
    std::vector<State> chunks;
  };

  bool follow(const std::filesystem::path& path, const BlobRecord& record, uint64_t offset,
              uint64_t bytes);
  void forget() noexcept;
  void drop_first();
  void fetch(uint64_t last_needed);
  std::optional<uint64_t> take(Block& block, uint64_t begin, uint64_t end, std::byte* out);

  ThreadPool* pool_ = nullptr;
  std::mutex mutex_;
  const BlobRecord* record_ = nullptr;  // whose blocks these are
  uint64_t block_bytes_ = 0;
  uint64_t last_end_ = 0;  // of the last read of record_, in order or not
  uint64_t next_ = 0;      // the block to fetch next
  uint64_t ahead_ = 0;     // blocks to fetch beyond what was asked for
  std::optional<io::BufferPool> buffers_;
  io::File file_;
  std::deque<Block> blocks_;        // consecutive
  std::optional<io::Queue> queue_;  // goes before the memory and the file it uses
};

}  // namespace ds
