#include "checkpoint/blob.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/text.h"

namespace ds {

std::string blob_file_name(int rank) {
  DS_CHECK(rank >= 0, Code::kInvalidArgument, "rank ", rank, " is negative");
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "data-%05d.bin", rank);
  return text.data();
}

BlobWriter::BlobWriter(const std::filesystem::path& folder, const std::string& file,
                       int64_t chunk_bytes) {
  DS_CHECK(chunk_bytes >= kMinChunkBytes && chunk_bytes <= kMaxChunkBytes, Code::kInvalidArgument,
           "checkpoint chunks of ", chunk_bytes, " bytes; from ", kMinChunkBytes, " to ",
           kMaxChunkBytes, " are allowed");
  record_.file = file;
  record_.chunk_bytes = static_cast<uint32_t>(chunk_bytes);
  buffer_.resize(static_cast<size_t>(chunk_bytes));
  file_ = File(folder / file, File::Mode::kCreate);
}

uint64_t BlobWriter::begin(uint64_t length) {
  const uint64_t alignment = static_cast<uint64_t>(
      length >= static_cast<uint64_t>(kLargeItemBytes) ? kLargeBlobAlignment : kBlobAlignment);
  static constexpr std::array<std::byte, kLargeBlobAlignment> kZeros{};
  const uint64_t padding = (alignment - record_.size % alignment) % alignment;
  write(std::span(kZeros).first(padding));
  return record_.size;
}

void BlobWriter::write(std::span<const std::byte> bytes) {
  record_.size += bytes.size();
  while (!bytes.empty()) {
    if (filled_ == 0 && bytes.size() >= buffer_.size()) {
      emit(bytes.first(buffer_.size()));
      bytes = bytes.subspan(buffer_.size());
      continue;
    }
    const size_t n = std::min(bytes.size(), buffer_.size() - filled_);
    std::memcpy(buffer_.data() + filled_, bytes.data(), n);
    filled_ += n;
    bytes = bytes.subspan(n);
    if (filled_ == buffer_.size()) {
      emit(buffer_);
      filled_ = 0;
    }
  }
}

void BlobWriter::emit(std::span<const std::byte> chunk) {
  record_.checksums.push_back(xxh3_64(chunk));
  file_.append(chunk);
}

BlobRecord BlobWriter::finish() {
  if (filled_ > 0) emit(std::span(buffer_).first(filled_));
  filled_ = 0;
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
                       std::shared_ptr<OpenFiles> files)
    : record_(record), path_(folder / record.file), files_(std::move(files)) {
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

bool BlobReader::verify_chunk(uint64_t index, std::vector<std::byte>* scratch) const {
  scratch->resize(static_cast<size_t>(chunk_end(index) - chunk_begin(index)));
  files_->get(path_)->read_at(static_cast<int64_t>(chunk_begin(index)), *scratch);
  return xxh3_64(*scratch) == record_.checksums[index];
}

std::shared_ptr<const BlobReader::Chunk> BlobReader::chunk(uint64_t index) const {
  {
    const std::lock_guard lock(mutex_);
    if (last_ != nullptr && last_->index == index) return last_;
  }
  auto fresh = std::make_shared<Chunk>();
  fresh->index = index;
  if (!verify_chunk(index, &fresh->bytes)) return nullptr;
  const std::lock_guard lock(mutex_);
  last_ = fresh;
  return fresh;
}

}  // namespace ds
