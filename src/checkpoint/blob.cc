#include "checkpoint/blob.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/text.h"
#include "checkpoint/transfer_sizes.h"

namespace ds {
namespace {

constexpr int64_t kBlockBytes = int64_t{8} << 20;
constexpr uint64_t kSmallBytes = uint64_t{1} << 20;

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
      file_(folder / file, io::Access::kNew) {
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
    if (blocks_.empty() || blocks_.back().ticket != 0 || blocks_.back().filled == block_bytes_) {
      Block block;
      block.buffer = take_buffer();
      block.data = block.buffer.data();
      block.offset = static_cast<int64_t>(record_.size);
      blocks_.push_back(std::move(block));
    }
    Block& block = blocks_.back();
    const auto room = static_cast<size_t>(block_bytes_ - block.filled);
    const size_t n = std::min(bytes.size(), room);
    take(bytes.first(n), block.buffer.data() + block.filled);
    block.filled += static_cast<int64_t>(n);
    bytes = bytes.subspan(n);
    if (block.filled == block_bytes_ && options_.hold == nullptr) submit(block);
  }
}

void BlobWriter::write_lasting(std::span<const std::byte> bytes) {
  const auto unit = static_cast<uint64_t>(io::kAlignment);
  const auto block = static_cast<uint64_t>(block_bytes_);
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const bool direct = options_.hold == nullptr && file_.direct() && bytes.size() >= kLeastDirect &&
                      block % unit == 0 && record_.size % unit == 0 &&
                      address % static_cast<uintptr_t>(file_.memory_alignment()) == 0;
  if (!direct) return write(bytes);
  if (!blocks_.empty() && blocks_.back().ticket == 0) submit(blocks_.back());
  while (bytes.size() >= unit) {
    // Up to where a chunk ends, so that few checksums have to be put together.
    const uint64_t n = std::min<uint64_t>(bytes.size() / unit * unit, block - record_.size % block);
    const auto piece = bytes.first(static_cast<size_t>(n));
    Block part;
    part.data = piece.data();
    part.offset = static_cast<int64_t>(record_.size);
    part.filled = static_cast<int64_t>(n);
    blocks_.push_back(std::move(part));
    submit(blocks_.back());
    take(piece, nullptr);
    bytes = bytes.subspan(piece.size());
  }
  write(bytes);
}

// Memory for the next block: while blocks are written as they fill, the oldest one's after its
// write when there are enough of them.
io::Buffer BlobWriter::take_buffer() {
  const auto most = std::max<int64_t>(2, static_cast<int64_t>(kRingBytes) / block_bytes_);
  const auto held = [&] {
    return std::count_if(blocks_.begin(), blocks_.end(),
                         [](const Block& block) { return static_cast<bool>(block.buffer); });
  };
  while (options_.hold == nullptr && held() >= most) retire_first();
  return buffers_.take();
}

// One chunk per task; what begins or ends within a chunk waits in chunk_ for the rest.
void BlobWriter::take(std::span<const std::byte> bytes, std::byte* target) {
  const auto chunk = static_cast<uint64_t>(options_.chunk_bytes);
  const uint64_t from = record_.size, to = from + bytes.size();
  const uint64_t first = from / chunk, last = (to + chunk - 1) / chunk;
  record_.checksums.resize(static_cast<size_t>(to / chunk));
  const auto part_of = [&](uint64_t i) {
    const uint64_t low = std::max(from, i * chunk), high = std::min(to, (i + 1) * chunk);
    return bytes.subspan(static_cast<size_t>(low - from), static_cast<size_t>(high - low));
  };
  const auto task = [&](int64_t begin, int64_t end) {
    for (uint64_t i = first + static_cast<uint64_t>(begin); i < first + static_cast<uint64_t>(end);
         ++i) {
      const auto source = part_of(i);
      // Reading it for the checksum brings it near for the copy.
      if (source.size() == chunk) record_.checksums[static_cast<size_t>(i)] = xxh3_64(source);
      if (target == nullptr) continue;
      io::stream_copy(target + (source.data() - bytes.data()), source.data(), source.size());
    }
  };
  if (options_.pool != nullptr && bytes.size() >= kSharedBytes) {
    const auto grain =
        std::max<int64_t>(1, static_cast<int64_t>(kSharedBytes) / 2 / options_.chunk_bytes);
    options_.pool->for_range(static_cast<int64_t>(last - first), grain, task);
  } else {
    task(0, static_cast<int64_t>(last - first));
  }
  for (const uint64_t i : {first, last - 1}) {
    const auto source = part_of(i);
    if (source.size() < chunk) {
      chunk_.insert(chunk_.end(), source.begin(), source.end());
      if (chunk_.size() == chunk) {
        record_.checksums[static_cast<size_t>(i)] = xxh3_64(chunk_);
        chunk_.clear();
      }
    }
    if (first == last - 1) break;
  }
  record_.size = to;
}

void BlobWriter::submit(Block& block) {
  reserve(std::max(block.offset + block.filled, item_end_));
  if (!queue_) queue_.emplace(io::QueueOptions{.block_bytes = kBlockBytes});
  block.ticket =
      queue_->write(file_, block.offset, {block.data, static_cast<size_t>(block.filled)});
}

// Room for the whole item that is being added and, where the disk has it, for all that is expected,
// so that writes do not make the file longer.
void BlobWriter::reserve(int64_t end) {
  if (end <= reserved_) return;
  if (const int64_t all = options_.expected_bytes; all > end) {
    try {
      file_.reserve(reserved_, all - reserved_);
      reserved_ = all;
      return;
    } catch (const Error&) {
      file_.resize(reserved_);  // a part of it may have been made
    }
  }
  file_.reserve(reserved_, end - reserved_);
  reserved_ = end;
}

void BlobWriter::retire_first() {
  queue_->wait(blocks_.front().ticket);
  buffers_.give(std::move(blocks_.front().buffer));
  blocks_.pop_front();
}

BlobRecord BlobWriter::finish() {
  if (!chunk_.empty()) record_.checksums.push_back(xxh3_64(chunk_));
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
  if (reserved_ > item_end_) file_.resize(item_end_);
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

std::optional<uint64_t> BlobReader::read(uint64_t offset, std::span<std::byte> out,
                                         bool ahead) const {
  DS_CHECK(offset <= record_.size && out.size() <= record_.size - offset, Code::kInternal,
           "a read of ", out.size(), " bytes at ", offset, " leaves ", record_.file);
  if (ahead) {
    if (const auto done = ahead_->read(path_, record_, offset, out.size(), out.data())) {
      return done->damaged;
    }
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
