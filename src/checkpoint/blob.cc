#include "checkpoint/blob.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/text.h"

namespace ds {
namespace {

constexpr int64_t kBlockBytes = int64_t{8} << 20;
constexpr int64_t kRingBytes = int64_t{64} << 20;
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;
constexpr int64_t kSharedBytes = int64_t{1} << 20;  // less is not worth a second thread

}  // namespace

std::string blob_file_name(int rank) {
  DS_CHECK(rank >= 0, Code::kInvalidArgument, "rank ", rank, " is negative");
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "data-%05d.bin", rank);
  return text.data();
}

int64_t blob_block_bytes(int64_t chunk_bytes) {
  DS_CHECK(chunk_bytes >= kMinChunkBytes && chunk_bytes <= kMaxChunkBytes, Code::kInvalidArgument,
           "checkpoint chunks of ", chunk_bytes, " bytes; from ", kMinChunkBytes, " to ",
           kMaxChunkBytes, " are allowed");
  return chunk_bytes * std::max<int64_t>(1, kBlockBytes / chunk_bytes);
}

BlobWriter::BlobWriter(const std::filesystem::path& folder, const std::string& file,
                       const BlobOptions& options)
    : options_(options),
      block_bytes_(blob_block_bytes(options.chunk_bytes)),
      own_buffers_(block_bytes_),
      buffers_(options.hold != nullptr ? *options.hold : own_buffers_),
      file_(folder / file, io::Access::kCreate) {
  DS_CHECK(buffers_.buffer_bytes() >= block_bytes_, Code::kInternal,
           "the buffers of a checkpoint are too small for its chunks");
  record_.file = file;
  record_.chunk_bytes = static_cast<uint32_t>(options.chunk_bytes);
}

uint64_t BlobWriter::begin(uint64_t length) {
  const uint64_t alignment = static_cast<uint64_t>(
      length >= static_cast<uint64_t>(kLargeItemBytes) ? kLargeBlobAlignment : kBlobAlignment);
  static constexpr std::array<std::byte, kLargeBlobAlignment> kZeros{};
  const uint64_t padding = (alignment - record_.size % alignment) % alignment;
  write(std::span(kZeros).first(padding));
  item_end_ = static_cast<int64_t>(record_.size + length);
  return record_.size;
}

void BlobWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (blocks_.empty() || blocks_.back().filled == block_bytes_) {
      Block block;
      block.buffer = take_buffer();
      block.offset = static_cast<int64_t>(record_.size);
      blocks_.push_back(std::move(block));
    }
    Block& block = blocks_.back();
    const auto room = static_cast<size_t>(block_bytes_ - block.filled);
    const size_t n = std::min(bytes.size(), room);
    fill(block, bytes.first(n));
    bytes = bytes.subspan(n);
    if (block.filled == block_bytes_ && options_.hold == nullptr) submit(block);
  }
}

// Memory for the next block: while blocks are written as they fill, the oldest one's after its
// write when there are enough of them.
io::Buffer BlobWriter::take_buffer() {
  const auto most = static_cast<size_t>(std::max<int64_t>(2, kRingBytes / block_bytes_));
  if (options_.hold == nullptr && blocks_.size() >= most) retire_first();
  return buffers_.take();
}

// Copies into a block and takes the checksums of the chunks that become whole, one chunk per task.
void BlobWriter::fill(Block& block, std::span<const std::byte> bytes) {
  const int64_t chunk = options_.chunk_bytes;
  const int64_t from = block.filled, to = from + static_cast<int64_t>(bytes.size());
  const int64_t first = from / chunk, last = (to + chunk - 1) / chunk;  // chunks of the block
  const auto base = static_cast<size_t>(block.offset / chunk);
  record_.checksums.resize(base + static_cast<size_t>(to / chunk));
  const auto task = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t low = std::max(from, i * chunk), high = std::min(to, (i + 1) * chunk);
      const auto source =
          bytes.subspan(static_cast<size_t>(low - from), static_cast<size_t>(high - low));
      std::byte* const target = block.buffer.data() + low;
      const bool whole = high == (i + 1) * chunk;
      // Where the source is the chunk, reading it for the checksum brings it near for the copy.
      if (whole && low == i * chunk) {
        record_.checksums[base + static_cast<size_t>(i)] = xxh3_64(source);
        io::stream_copy(target, source.data(), source.size());
      } else {
        io::stream_copy(target, source.data(), source.size());
        if (whole) {
          record_.checksums[base + static_cast<size_t>(i)] = xxh3_64(block.buffer.bytes().subspan(
              static_cast<size_t>(i * chunk), static_cast<size_t>(chunk)));
        }
      }
    }
  };
  if (options_.pool != nullptr && static_cast<int64_t>(bytes.size()) >= kSharedBytes) {
    const int64_t grain = std::max<int64_t>(1, kSharedBytes / 2 / chunk);
    options_.pool->for_range(last - first, grain,
                             [&](int64_t begin, int64_t end) { task(first + begin, first + end); });
  } else {
    task(first, last);
  }
  block.filled = to;
  record_.size += bytes.size();
}

void BlobWriter::submit(Block& block) {
  // Room for the whole item that is being added, so that its writes do not make the file longer.
  const int64_t end = std::max(block.offset + block.filled, item_end_);
  if (end > reserved_) file_.reserve(reserved_, end - reserved_);
  reserved_ = std::max(reserved_, end);
  if (!queue_) queue_.emplace();
  block.ticket = queue_->write(file_, block.offset,
                               block.buffer.bytes().first(static_cast<size_t>(block.filled)));
}

void BlobWriter::retire_first() {
  queue_->wait(blocks_.front().ticket);
  buffers_.give(std::move(blocks_.front().buffer));
  blocks_.pop_front();
}

BlobRecord BlobWriter::finish() {
  if (const auto rest = static_cast<int64_t>(record_.size) % options_.chunk_bytes; rest > 0) {
    const Block& block = blocks_.back();
    record_.checksums.push_back(xxh3_64(block.buffer.bytes().subspan(
        static_cast<size_t>(block.filled - rest), static_cast<size_t>(rest))));
  }
  item_end_ = static_cast<int64_t>(record_.size);
  if (!queue_ && record_.size < kSmallBytes && !blocks_.empty()) {
    // A queue would take longer to set up than the file to write.
    const Block& block = blocks_.front();
    file_.write_at(0, block.buffer.bytes().first(static_cast<size_t>(block.filled)));
    buffers_.give(std::move(blocks_.front().buffer));
    blocks_.clear();
  }
  for (Block& block : blocks_) {
    if (block.ticket == 0) submit(block);
  }
  while (!blocks_.empty()) retire_first();
  file_.sync();
  file_.close();
  return std::move(record_);
}

std::shared_ptr<const File> OpenFiles::get(const std::filesystem::path& path) {
  constexpr size_t kMostOpen = 64;
  const std::lock_guard lock(mutex_);
  for (const auto& file : files_) {
    if (file->path() == path) return file;
  }
  auto file = std::make_shared<const File>(path, File::Mode::kRead);
  if (files_.size() == kMostOpen) files_.erase(files_.begin());
  files_.push_back(file);
  return file;
}

BlobReader::BlobReader(const std::filesystem::path& folder, const BlobRecord& record,
                       std::shared_ptr<OpenFiles> files, std::shared_ptr<ReadAhead> ahead)
    : record_(record),
      path_(folder / record.file),
      files_(std::move(files)),
      ahead_(std::move(ahead)) {
  const std::filesystem::path& path = path_;
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  DS_CHECK(status.type() != std::filesystem::file_type::not_found, Code::kCorrupt,
           printable(path.string(), 300), " is missing: the checkpoint is incomplete");
  DS_CHECK(std::filesystem::is_regular_file(status), Code::kCorrupt, printable(path.string(), 300),
           " is not a regular file: the checkpoint is damaged");
  const auto size = static_cast<uint64_t>(files_->get(path)->size());
  DS_CHECK(size == record.size, Code::kCorrupt, printable(path.string(), 300), " has ", size,
           " bytes, the manifest says ", record.size, ": ",
           size < record.size ? "the file is truncated" : "the file has foreign bytes at its end");
}

uint64_t BlobReader::chunk_end(uint64_t index) const {
  return std::min<uint64_t>(record_.size, (index + 1) * record_.chunk_bytes);
}

std::optional<uint64_t> BlobReader::read(uint64_t offset, std::span<std::byte> out) const {
  DS_CHECK(offset <= record_.size && out.size() <= record_.size - offset, Code::kInternal,
           "a read of ", out.size(), " bytes at ", offset, " leaves ", record_.file);
  if (const auto done = ahead_->read(path_, record_, offset, out.size(), out.data())) {
    return done->damaged;
  }
  while (!out.empty()) {
    const uint64_t index = offset / record_.chunk_bytes;
    const uint64_t begin = chunk_begin(index), end = chunk_end(index);
    const auto n = static_cast<size_t>(std::min<uint64_t>(end - offset, out.size()));
    if (n == end - begin) {  // a whole chunk goes straight to its place
      files_->get(path_)->read_at(static_cast<int64_t>(offset), out.first(n));
      if (xxh3_64(out.first(n)) != record_.checksums[index]) return index;
    } else {
      const auto source = chunk(index);
      if (source == nullptr) return index;
      std::memcpy(out.data(), source->bytes.data() + (offset - begin), n);
    }
    offset += n;
    out = out.subspan(n);
  }
  return std::nullopt;
}

bool BlobReader::read_chunk(uint64_t index, std::vector<std::byte>* bytes) const {
  bytes->resize(static_cast<size_t>(chunk_end(index) - chunk_begin(index)));
  files_->get(path_)->read_at(static_cast<int64_t>(chunk_begin(index)), *bytes);
  return xxh3_64(*bytes) == record_.checksums[index];
}

std::shared_ptr<const BlobReader::Chunk> BlobReader::chunk(uint64_t index) const {
  {
    const std::lock_guard lock(mutex_);
    if (last_ != nullptr && last_->index == index) return last_;
  }
  auto fresh = std::make_shared<Chunk>();
  fresh->index = index;
  if (!read_chunk(index, &fresh->bytes)) return nullptr;
  const std::lock_guard lock(mutex_);
  last_ = fresh;
  return fresh;
}

}  // namespace ds
