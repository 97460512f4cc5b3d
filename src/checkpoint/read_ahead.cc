#include "checkpoint/read_ahead.h"

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "checkpoint/blob.h"
#include "checkpoint/transfer_sizes.h"

namespace ds {
namespace {

constexpr uint64_t kSmallBlob = uint64_t{4} << 20;  // read with ordinary calls
constexpr uint64_t kLargeRead = uint64_t{4} << 20;  // worth following from anywhere
constexpr uint64_t kGap = uint64_t{1} << 20;        // skipped bytes that still count as in order

}  // namespace

std::optional<ReadAhead::Result> ReadAhead::read(const std::filesystem::path& path,
                                                 const BlobRecord& record, uint64_t offset,
                                                 uint64_t bytes, std::byte* out) {
  if (record.size < kSmallBlob) return std::nullopt;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !follow(path, record, offset, bytes)) return std::nullopt;
  try {
    const uint64_t end = offset + bytes;
    while (offset < end) {
      const uint64_t index = offset / block_bytes_;
      while (!blocks_.empty() && blocks_.front().index < index) drop_first();
      fetch((end - 1) / block_bytes_);
      Block& block = blocks_.front();
      queue_->wait(block.ticket);
      const uint64_t stop = std::min(end, (index + 1) * block_bytes_);
      if (const auto damaged = take(block, offset, stop, out)) return Result{damaged};
      out += stop - offset;
      offset = stop;
    }
    last_end_ = end;
    return Result{};
  } catch (...) {
    forget();
    throw;
  }
}

// Makes the blocks begin at or before the one that holds `offset`; false when that is not worth it.
bool ReadAhead::follow(const std::filesystem::path& path, const BlobRecord& record, uint64_t offset,
                       uint64_t bytes) {
  const bool same = record_ == &record;
  const uint64_t before = same ? std::exchange(last_end_, offset + bytes) : 0;
  if (same && !blocks_.empty()) {
    const uint64_t index = offset / block_bytes_;
    if (index >= blocks_.front().index && index <= next_) return true;
  }
  const bool in_order = same && offset >= before && offset - before <= kGap;
  if (!in_order && bytes < kLargeRead) {
    if (!same) {
      forget();
      record_ = &record;
      last_end_ = offset + bytes;
    }
    return false;
  }
  forget();
  const auto block_bytes = blob_block_bytes(record.chunk_bytes);
  if (!buffers_ || buffers_->buffer_bytes() != block_bytes) buffers_.emplace(block_bytes);
  if (!queue_) queue_.emplace();
  file_ = io::File(path, io::Access::kRead);
  record_ = &record;
  block_bytes_ = static_cast<uint64_t>(block_bytes);
  next_ = offset / block_bytes_;
  last_end_ = offset + bytes;
  return true;
}

void ReadAhead::forget() noexcept {
  try {
    if (queue_) queue_->wait_all();  // the memory is not free before
  } catch (const std::exception&) {
    // Nobody asked for these blocks yet.
  }
  while (!blocks_.empty()) {
    buffers_->give(std::move(blocks_.front().buffer));
    blocks_.pop_front();
  }
  record_ = nullptr;
  ahead_ = 0;
}

// Going on to the next block shows that the reader goes in order: then more is fetched.
void ReadAhead::drop_first() {
  queue_->wait(blocks_.front().ticket);
  buffers_->give(std::move(blocks_.front().buffer));
  blocks_.pop_front();
  ahead_ = ahead_ == 0 ? 1 : ahead_ * 2;
}

void ReadAhead::fetch(uint64_t last_needed) {
  const uint64_t total = (record_->size + block_bytes_ - 1) / block_bytes_;
  const size_t most = std::max<uint64_t>(2, kRingBytes / block_bytes_);
  ahead_ = std::min<uint64_t>(ahead_, most);
  const uint64_t stop = std::min(total, last_needed + 1 + ahead_);
  while (blocks_.size() < most && next_ < stop) {
    const uint64_t begin = next_ * block_bytes_;
    const uint64_t length = std::min(block_bytes_, record_->size - begin);
    Block block;
    block.index = next_;
    block.buffer = buffers_->take();
    block.chunks.resize((length + record_->chunk_bytes - 1) / record_->chunk_bytes);
    const auto target = block.buffer.bytes().first(length);
    blocks_.push_back(std::move(block));
    blocks_.back().ticket = queue_->read(file_, static_cast<int64_t>(begin), target);
    ++next_;
  }
}

std::optional<uint64_t> ReadAhead::take(Block& block, uint64_t begin, uint64_t end,
                                        std::byte* out) {
  const uint64_t chunk = record_->chunk_bytes;
  const uint64_t base = block.index * block_bytes_;
  const uint64_t first = (begin - base) / chunk, last = (end - base + chunk - 1) / chunk;
  const uint64_t length = std::min(block_bytes_, record_->size - base);
  const auto task = [&](int64_t from, int64_t to) {
    for (uint64_t i = first + static_cast<uint64_t>(from); i < first + static_cast<uint64_t>(to);
         ++i) {
      const uint64_t low = i * chunk, high = std::min(length, low + chunk);
      State& state = block.chunks[i];
      if (state == State::kUnknown) {
        const bool good = xxh3_64(block.buffer.bytes().subspan(low, high - low)) ==
                          record_->checksums[base / chunk + i];
        state = good ? State::kGood : State::kDamaged;
      }
      const uint64_t copy_from = std::max(begin, base + low), copy_to = std::min(end, base + high);
      io::stream_copy(out + (copy_from - begin), block.buffer.data() + (copy_from - base),
                      copy_to - copy_from);
    }
  };
  const auto chunks = static_cast<int64_t>(last - first);
  if (pool_ != nullptr && end - begin >= kSharedBytes) {
    const auto grain = static_cast<int64_t>(std::max<uint64_t>(1, kSharedBytes / 2 / chunk));
    pool_->for_range(chunks, grain, task);
  } else {
    task(0, chunks);
  }
  for (uint64_t i = first; i < last; ++i) {
    if (block.chunks[i] == State::kDamaged) return base / chunk + i;
  }
  return std::nullopt;
}

}  // namespace ds
