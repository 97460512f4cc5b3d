// Blob files: tensor bytes at aligned offsets, with one checksum per chunk that covers every byte
// of the file, padding included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/thread_pool.h"
#include "checkpoint/manifest.h"
#include "checkpoint/read_ahead.h"
#include "io/buffer.h"
#include "io/queue.h"

namespace ds {

// "data-00003.bin".
std::string blob_file_name(int rank);

// How a blob is written.
struct BlobOptions {
  int64_t chunk_bytes = kDefaultChunkBytes;
  // Shares the copying and the checksums; null: the calling thread does it alone. Only used inside
  // write(), so that finish() may run elsewhere.
  ThreadPool* pool = nullptr;
  // Holds the whole blob, in buffers of blob_block_bytes, until finish() writes it: what is added
  // is then a snapshot, taken at the speed of memory. Null: blocks are written as they fill.
  io::BufferPool* hold = nullptr;
  // About how long the blob will be, 0: not known. The disk makes room for so much at once, since a
  // file that becomes longer waits for all writes that are under way.
  int64_t expected_bytes = 0;
};

// Bytes that are handed to the disk at once: whole chunks, 8 MiB where they allow it.
int64_t blob_block_bytes(int64_t chunk_bytes);

// Writes one blob front to back while later bytes are still being added, taking checksums on the
// way. Memory: 64 MiB of blocks, or what `hold` says.
class BlobWriter {
 public:
  BlobWriter(const std::filesystem::path& folder, const std::string& file,
             const BlobOptions& options);

  // Pads to the alignment of an item of `length` bytes and returns where it begins.
  uint64_t begin(uint64_t length);
  void write(std::span<const std::byte> bytes);
  // The same for memory that stays as it is until finish(): the disk takes it from there where its
  // address allows, without a copy.
  void write_lasting(std::span<const std::byte> bytes);
  // Writes what is left, syncs and closes. The last call.
  BlobRecord finish();

 private:
  struct Block {
    io::Buffer buffer;                // empty: `data` is the caller's
    const std::byte* data = nullptr;  // what is written
    int64_t offset = 0;               // in the file
    int64_t filled = 0;
    io::Queue::Ticket ticket = 0;  // 0: not handed to the disk yet
  };
  io::Buffer take_buffer();
  // Takes the checksums of what comes next and, unless `target` is null, copies it there.
  void take(std::span<const std::byte> bytes, std::byte* target);
  void submit(Block& block);
  void reserve(int64_t end);
  void retire_first();

  const BlobOptions options_;
  const int64_t block_bytes_;
  BlobRecord record_;
  int64_t item_end_ = 0;          // where the item that begin() announced ends
  std::vector<std::byte> chunk_;  // what there is of the chunk that is not whole yet, when needed
  int64_t reserved_ = 0;          // the disk has room up to here
  io::BufferPool own_buffers_;
  io::BufferPool& buffers_;
  io::File file_;
  std::deque<Block> blocks_;        // in file order; the last may be filling
  std::optional<io::Queue> queue_;  // goes before the memory and the file it uses
};

// Keeps the most recently opened files open, but not more than a process can afford: a checkpoint
// may have one blob for each of thousands of ranks.
class OpenFiles {
 public:
  std::shared_ptr<const File> get(const std::filesystem::path& path);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const File>> files_;
};

// Reads verified ranges. Safe to use from several threads.
class BlobReader {
 public:
  // Checks that the file is a regular file of the recorded size. `record` must outlive this.
  BlobReader(const std::filesystem::path& folder, const BlobRecord& record,
             std::shared_ptr<OpenFiles> files, std::shared_ptr<ReadAhead> ahead);

  // Fills `out` from `offset`, checking every chunk it touches. Returns the index of the first
  // damaged chunk; then `out` is not to be used. Who reads in order has what follows read `ahead`.
  [[nodiscard]] std::optional<uint64_t> read(uint64_t offset, std::span<std::byte> out,
                                             bool ahead = true) const;
  // Reads one chunk; false when it does not match its checksum.
  bool read_chunk(uint64_t index, std::vector<std::byte>* bytes) const;

  uint64_t chunk_begin(uint64_t index) const { return index * record_.chunk_bytes; }
  uint64_t chunk_end(uint64_t index) const;
  const BlobRecord& record() const { return record_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Chunk {
    uint64_t index = 0;
    std::vector<std::byte> bytes;
  };
  std::shared_ptr<const Chunk> chunk(uint64_t index) const;  // null when damaged

  const BlobRecord& record_;
  std::filesystem::path path_;
  std::shared_ptr<OpenFiles> files_;
  std::shared_ptr<ReadAhead> ahead_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Chunk> last_;  // small tensors share chunks
};

}  // namespace ds
