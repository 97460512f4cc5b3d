#include "checkpoint/bulk_read.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "checkpoint/transfer_sizes.h"

namespace ds {
namespace {

constexpr int kDepth = 32;  // requests of 1 MiB: what the disk needs to be busy meanwhile
constexpr uint64_t kWindow = uint64_t{40} << 20;      // asked for and not taken yet
constexpr uint64_t kDirectBytes = uint64_t{4} << 20;  // at once, straight to its place
constexpr uint64_t kBufferBytes = uint64_t{2} << 20;  // at once, by way of a buffer

// As many whole chunks as fit into `bytes`, at least one.
uint64_t whole_chunks(uint64_t bytes, uint64_t chunk) {
  return chunk * std::max<uint64_t>(1, bytes / chunk);
}

}  // namespace

BulkRead::BulkRead(const std::filesystem::path& path, const BlobRecord& record, ThreadPool* pool)
    : record_(record),
      pool_(pool),
      chunk_(record.chunk_bytes),
      most_direct_(whole_chunks(kDirectBytes, chunk_)),
      file_(path, io::Access::kRead),
      buffers_(static_cast<int64_t>(whole_chunks(kBufferBytes, chunk_))),
      queue_({.depth = kDepth}) {}

uint64_t BulkRead::chunk_end(uint64_t begin) const {
  return std::min(record_.size, begin + chunk_);
}

// Where the chunks from `begin` on may arrive at once, and up to which one; null when they may not.
std::byte* BulkRead::place_of(uint64_t begin, const BlobPart& part, uint64_t* end) const {
  if (part.target == nullptr || part.offset > begin) return nullptr;
  std::byte* const place = part.target + (begin - part.offset);
  const auto alignment =
      static_cast<uintptr_t>(file_.direct() ? file_.memory_alignment() : int64_t{1});
  if (reinterpret_cast<uintptr_t>(place) % alignment != 0) return nullptr;
  if (file_.direct() && begin % static_cast<uint64_t>(io::kAlignment) != 0) return nullptr;
  const uint64_t last = part.end() == record_.size ? part.end() : part.end() / chunk_ * chunk_;
  if (last < begin + std::min(kLeastDirect, record_.size - begin)) return nullptr;
  *end = std::min(last, begin + most_direct_);
  return place;
}

// A buffer counts as a whole, however little is read into it.
uint64_t BulkRead::held(const Block& block) const {
  return block.buffer ? static_cast<uint64_t>(buffers_.buffer_bytes()) : block.end - block.begin;
}

// Calls fn(part, from, to) for what parts have in [begin, end) of a block.
template <class Fn>
void BulkRead::each_part(const Block& block, uint64_t begin, uint64_t end, const Fn& fn) const {
  const auto parts = parts_.subspan(block.part);
  auto part = std::partition_point(parts.begin(), parts.end(),
                                   [&](const BlobPart& p) { return p.end() <= begin; });
  for (; part != parts.end() && part->offset < end; ++part) {
    fn(*part, std::max(part->offset, begin), std::min(part->end(), end));
  }
}

bool BulkRead::start_next(const PartNotice& notice) {
  while (part_ < parts_.size() && parts_[part_].end() <= at_) ++part_;
  if (part_ == parts_.size()) return false;
  at_ = std::max(at_, parts_[part_].offset / chunk_ * chunk_);
  Block block;
  block.begin = at_;
  block.part = part_;
  block.data = place_of(at_, parts_[part_], &block.end);
  if (block.data == nullptr) {
    const auto most = static_cast<uint64_t>(buffers_.buffer_bytes());
    size_t next = part_;
    uint64_t unused;
    do {
      block.end = at_ = chunk_end(at_);
      while (next < parts_.size() && parts_[next].end() <= at_) ++next;
    } while (next < parts_.size() && parts_[next].offset < at_ + chunk_ &&
             chunk_end(at_) - block.begin <= most &&
             place_of(at_, parts_[next], &unused) == nullptr);
    block.buffer = buffers_.take();
    block.data = block.buffer.data();
  }
  at_ = block.end;
  if (notice) each_part(block, block.begin, block.end, notice);
  const auto bytes = static_cast<size_t>(block.end - block.begin);
  const std::span<std::byte> target(block.data, bytes);
  blocks_.push_back(std::move(block));
  blocks_.back().ticket = queue_.read(file_, static_cast<int64_t>(blocks_.back().begin), target);
  on_way_ += held(blocks_.back());
  return true;
}

bool BulkRead::finish(const Block& block, const std::function<bool(uint64_t)>& on_damage) {
  const uint64_t first = block.begin / chunk_;
  const auto chunks = static_cast<int64_t>((block.end - block.begin + chunk_ - 1) / chunk_);
  good_.assign(static_cast<size_t>(chunks), 0);
  const auto task = [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const uint64_t begin = block.begin + static_cast<uint64_t>(i) * chunk_;
      const uint64_t end = chunk_end(begin);
      const std::byte* const data = block.data + (begin - block.begin);
      if (xxh3_64({data, static_cast<size_t>(end - begin)}) !=
          record_.checksums[first + static_cast<uint64_t>(i)]) {
        continue;
      }
      good_[static_cast<size_t>(i)] = 1;
      if (!block.buffer) continue;
      each_part(block, begin, end, [&](const BlobPart& part, uint64_t low, uint64_t high) {
        if (part.target == nullptr) return;
        io::stream_copy(part.target + (low - part.offset), data + (low - begin),
                        static_cast<size_t>(high - low));
      });
    }
  };
  if (pool_ != nullptr && block.end - block.begin >= kSharedBytes) {
    pool_->for_range(chunks, static_cast<int64_t>(whole_chunks(kSharedBytes / 2, chunk_) / chunk_),
                     task);
  } else {
    task(0, chunks);
  }
  bool whole = true;
  for (int64_t i = 0; i < chunks; ++i) {
    if (good_[static_cast<size_t>(i)] != 0) continue;
    whole = false;
    if (!on_damage(first + static_cast<uint64_t>(i))) return false;
  }
  if (!whole || !block.buffer) return true;
  each_part(block, block.begin, block.end, [&](const BlobPart& part, uint64_t low, uint64_t high) {
    if (part.target != nullptr || part.sink == nullptr) return;
    (*part.sink)(part.at + (low - part.offset),
                 {block.data + (low - block.begin), static_cast<size_t>(high - low)});
  });
  return true;
}

void BulkRead::run(std::span<const BlobPart> parts, const std::function<bool(uint64_t)>& on_damage,
                   const PartNotice& notice) {
  parts_ = parts;
  for (;;) {
    while (on_way_ < kWindow && start_next(notice)) {
    }
    if (blocks_.empty()) return;
    queue_.wait(blocks_.front().ticket);
    Block block = std::move(blocks_.front());
    blocks_.pop_front();
    on_way_ -= held(block);
    const bool go_on = finish(block, on_damage);
    buffers_.give(std::move(block.buffer));
    if (!go_on) return;
  }
}

}  // namespace ds
