// Reads many parts of a blob in the order of the file: whole chunks go past the page cache straight
// to where they are wanted, the rest by way of buffers, and checksums are taken where the bytes
// arrive, while later ones are on their way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/manifest.h"
#include "io/buffer.h"
#include "io/queue.h"

namespace ds {

// Takes a piece of something: where it begins in there, in bytes, and what it holds.
using PieceSink = std::function<void(uint64_t at, std::span<const std::byte> bytes)>;

// Bytes [offset, offset + bytes) of a blob, and where they go: to `target`, else to `sink` in
// pieces, counted from `at`; with neither they are only checked.
struct BlobPart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::byte* target = nullptr;
  const PieceSink* sink = nullptr;
  uint64_t at = 0;
  size_t item = 0;  // the caller's number for it

  uint64_t end() const { return offset + bytes; }
};

// Told that bytes [begin, end) of the blob, which lie in a part, are about to be asked for: what is
// in their place then is still what was there.
using PartNotice = std::function<void(const BlobPart& part, uint64_t begin, uint64_t end)>;

// Holds up to 40 MiB of buffers, less the more goes straight to its place.
class BulkRead {
 public:
  // Chunks are hashed by the threads of `pool`, null: by the calling one.
  BulkRead(const std::filesystem::path& path, const BlobRecord& record, ThreadPool* pool);

  // Every chunk that holds something of `parts`, which are not empty and rise without overlaps, is
  // read and checked once. Sinks are called by this thread, in order. Tells `on_damage` of each
  // chunk that does not match its checksum: false ends the work. Where such a chunk lies, a target
  // holds anything, and a sink is not called. For one call: what is still on its way when it ends
  // goes nowhere. `notice`, if there is one, hears of everything once, by this thread.
  void run(std::span<const BlobPart> parts, const std::function<bool(uint64_t chunk)>& on_damage,
           const PartNotice& notice = {});

  // Less is read as well by ordinary calls.
  static constexpr uint64_t kLeastBytes = uint64_t{4} << 20;

 private:
  struct Block {
    uint64_t begin = 0;  // in the blob, at a chunk
    uint64_t end = 0;
    std::byte* data = nullptr;  // where it arrives
    io::Buffer buffer;          // empty: in its place
    size_t part = 0;            // the first part with something in it
    io::Queue::Ticket ticket = 0;
  };
  uint64_t chunk_end(uint64_t begin) const;
  std::byte* place_of(uint64_t begin, const BlobPart& part, uint64_t* end) const;
  uint64_t held(const Block& block) const;
  bool start_next(const PartNotice& notice);
  bool finish(const Block& block, const std::function<bool(uint64_t)>& on_damage);
  template <class Fn>
  void each_part(const Block& block, uint64_t begin, uint64_t end, const Fn& fn) const;

  const BlobRecord& record_;
  ThreadPool* const pool_;
  const uint64_t chunk_;
  const uint64_t most_direct_;  // bytes of a block that arrives in its place
  io::File file_;
  io::BufferPool buffers_;
  std::span<const BlobPart> parts_;
  size_t part_ = 0;      // the first part that is not wholly asked for
  uint64_t at_ = 0;      // what lies before is asked for
  uint64_t on_way_ = 0;  // bytes that blocks_ hold
  std::deque<Block> blocks_;
  std::vector<char> good_;  // chunks of the block at hand
  io::Queue queue_;         // goes before the memory and the file it uses
};

}  // namespace ds
