#include "io/range_checksums.h"

#include <algorithm>

#include "base/checksum.h"
#include "base/error.h"

namespace ds::io {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

}  // namespace

std::vector<uint64_t> RangeChecksums::of(std::span<const std::byte> bytes) {
  std::vector<uint64_t> sums;
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), static_cast<size_t>(kPieceBytes));
    sums.push_back(xxh3_64(bytes.first(n)));
    bytes = bytes.subspan(n);
  }
  return sums;
}

void RangeChecksums::forget(const File& file, int64_t offset, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(file.identity());
  if (found == files_.end()) return;
  Pieces& pieces = found->second;
  auto at = pieces.lower_bound(offset);
  // One that begins before the range may reach into it.
  if (at != pieces.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second.bytes > offset) pieces.erase(before);
  }
  while (at != pieces.end() && at->first < offset + bytes) at = pieces.erase(at);
  if (pieces.empty()) files_.erase(found);
}

void RangeChecksums::keep(const File& file, int64_t offset, int64_t bytes,
                          const std::vector<uint64_t>& sums) {
  forget(file, offset, bytes);
  const std::lock_guard lock(mutex_);
  if (sums.empty()) return;
  Pieces& pieces = files_[file.identity()];
  int64_t at = 0;
  for (const uint64_t sum : sums) {
    const int64_t n = std::min(kPieceBytes, bytes - at);
    pieces[offset + at] = {n, sum};
    at += n;
  }
}

int64_t RangeChecksums::check(const File& file, int64_t offset,
                              std::span<const std::byte> bytes) const {
  std::vector<std::pair<int64_t, Piece>> inside;
  const int64_t end = offset + static_cast<int64_t>(bytes.size());
  {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(file.identity());
    if (found == files_.end()) return 0;
    auto at = found->second.lower_bound(offset);
    for (; at != found->second.end() && at->first + at->second.bytes <= end; ++at) {
      inside.emplace_back(at->first, at->second);
    }
  }
  int64_t known = 0;
  for (const auto& [at, piece] : inside) {
    const auto part =
        bytes.subspan(static_cast<size_t>(at - offset), static_cast<size_t>(piece.bytes));
    DS_CHECK(xxh3_64(part) == piece.sum, Code::kCorrupt, printable(file.path().string(), 300), ": ",
             piece.bytes, " bytes at ", at, " are not what was written there (checksum)");
    known += piece.bytes;
  }
  return known;
}

}  // namespace ds::io
