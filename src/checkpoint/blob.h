// Blob files: tensor bytes at aligned offsets, with one checksum per chunk that covers every byte
// of the file, padding included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/manifest.h"

namespace ds {

// "data-00003.bin".
std::string blob_file_name(int rank);

// Writes one blob front to back with one chunk of memory, taking checksums on the way.
class BlobWriter {
 public:
  BlobWriter(const std::filesystem::path& folder, const std::string& file, int64_t chunk_bytes);

  // Pads to the alignment of an item of `length` bytes and returns where it begins.
  uint64_t begin(uint64_t length);
  void write(std::span<const std::byte> bytes);
  // Writes what is left, syncs and closes. The last call.
  BlobRecord finish();

 private:
  void emit(std::span<const std::byte> chunk);

  File file_;
  BlobRecord record_;
  std::vector<std::byte> buffer_;
  size_t filled_ = 0;
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
             std::shared_ptr<OpenFiles> files);

  // Fills `out` from `offset`, checking every chunk it touches. Returns the index of the first
  // damaged chunk; then `out` is not to be used.
  [[nodiscard]] std::optional<uint64_t> read(uint64_t offset, std::span<std::byte> out) const;
  // Whether the chunk on disk matches its checksum. `scratch` is reused between calls.
  bool verify_chunk(uint64_t index, std::vector<std::byte>* scratch) const;

  uint64_t chunk_begin(uint64_t index) const { return index * record_.chunk_bytes; }
  uint64_t chunk_end(uint64_t index) const;
  const BlobRecord& record() const { return record_; }

 private:
  struct Chunk {
    uint64_t index = 0;
    std::vector<std::byte> bytes;
  };
  std::shared_ptr<const Chunk> chunk(uint64_t index) const;  // null when damaged

  const BlobRecord& record_;
  std::filesystem::path path_;
  std::shared_ptr<OpenFiles> files_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Chunk> last_;  // small tensors share chunks
};

}  // namespace ds
