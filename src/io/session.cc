#include "io/session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/buffer.h"

namespace ds::io {
namespace {

std::shared_ptr<File> open_file(const Place& place, Access access) {
  DS_CHECK(!place.whole || place.offset == 0, Code::kInvalidArgument,
           "a whole file begins at offset 0, not at ", place.offset);
  DS_CHECK(place.offset >= 0, Code::kInvalidArgument, "file I/O at the negative offset ",
           place.offset);
  if (place.descriptor) return std::make_shared<File>(*place.descriptor, access);
  return std::make_shared<File>(place.path, access);
}

// Compares memory with what the file holds, read through the page cache.
void compare(const File& file, int64_t offset, std::span<const std::byte> bytes) {
  Buffer buffer(std::min<int64_t>(static_cast<int64_t>(bytes.size()), int64_t{1} << 20));
  while (!bytes.empty()) {
    const std::span<std::byte> held =
        buffer.bytes().first(std::min(bytes.size(), buffer.bytes().size()));
    file.read_at(offset, held);
    const auto differs = std::mismatch(held.begin(), held.end(), bytes.begin());
    const int64_t at = offset + (differs.first - held.begin());
    DS_CHECK(differs.first == held.end(), Code::kCorrupt, printable(file.path().string(), 300),
             ": byte ", at, " is not what was moved: validation failed");
    bytes = bytes.subspan(held.size());
    offset += static_cast<int64_t>(held.size());
  }
}

}  // namespace

Session::Ticket Session::read(const Place& place, std::span<std::byte> out, Keep keep, bool alone) {
  const std::shared_ptr<File> file = open_file(place, Access::kRead);
  const auto bytes = static_cast<int64_t>(out.size());
  const int64_t size = file->size();
  DS_CHECK(!place.whole || size == bytes, Code::kInvalidArgument,
           printable(file->path().string(), 300), " has ", size, " bytes, and ", bytes,
           " are to hold the whole file");
  auto finish = [this, file, keep = std::move(keep), out, offset = place.offset] {
    if (options_.checksum) checksums_.check(*file, offset, out);
    if (options_.validate) compare(*file, offset, out);
  };
  return engine_.read(*file, place.offset, out, {std::move(finish), alone});
}

Session::Ticket Session::write(const Place& place, std::span<const std::byte> bytes, Keep keep,
                               bool alone) {
  const std::shared_ptr<File> file =
      open_file(place, place.whole ? Access::kCreate : Access::kUpdate);
  const auto size = static_cast<int64_t>(bytes.size());
  DS_CHECK(place.offset <= INT64_MAX - size, Code::kInvalidArgument, "file I/O of ", size,
           " bytes at ", place.offset, ", which no file has");
  // A file that grows while it is written holds up every write.
  if (file->size() < place.offset + size) file->reserve(place.offset, size);
  std::vector<uint64_t> sums;
  if (options_.checksum) {
    sums = RangeChecksums::of(bytes);
    checksums_.forget(*file, place.offset, place.whole ? INT64_MAX : size);
  }
  auto finish = [this, file, keep = std::move(keep), bytes, offset = place.offset,
                 sums = std::move(sums)] {
    if (options_.checksum) {
      checksums_.keep(*file, offset, static_cast<int64_t>(bytes.size()), sums);
    }
    if (options_.validate) compare(*file, offset, bytes);
  };
  return engine_.write(*file, place.offset, bytes, {std::move(finish), alone});
}

}  // namespace ds::io
