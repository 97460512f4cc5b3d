// Checksums of the ranges of files that were written, by which what is read later is checked.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "io/file.h"

namespace ds::io {

// XXH3 of every MiB, and of the rest, of each range. Safe from several threads.
class RangeChecksums {
 public:
  // Of bytes that are about to be written.
  static std::vector<uint64_t> of(std::span<const std::byte> bytes);

  // What was known of bytes in the range is not known any more.
  void forget(const File& file, int64_t offset, int64_t bytes);
  // The range holds what `sums` are of.
  void keep(const File& file, int64_t offset, int64_t bytes, const std::vector<uint64_t>& sums);
  // Throws Error(kCorrupt), which names the first place, where the bytes of a range are not what
  // was written there. Returns how many of them are known to be.
  int64_t check(const File& file, int64_t offset, std::span<const std::byte> bytes) const;

 private:
  struct Piece {
    int64_t bytes;
    uint64_t sum;
  };
  using Pieces = std::map<int64_t, Piece>;  // by offset; they do not overlap

  mutable std::mutex mutex_;
  std::map<FileIdentity, Pieces> files_;
};

}  // namespace ds::io
