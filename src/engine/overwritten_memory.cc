#include "engine/overwritten_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "engine/stopwatch.h"

namespace ds {
namespace {

constexpr int64_t kSharedBytes = int64_t{1} << 20;  // of a thread at a time

}  // namespace

OverwrittenMemory::OverwrittenMemory(std::vector<std::span<std::byte>> at_hand, int64_t from_system,
                                     ThreadPool* pool)
    : at_hand_(std::move(at_hand)), pool_(pool) {
  std::reverse(at_hand_.begin(), at_hand_.end());
  for (const std::span<std::byte> memory : at_hand_) {
    at_hand_bytes_ += static_cast<int64_t>(memory.size());
  }
  if (from_system <= 0) return;
  try {
    fresh_ = std::make_unique<io::PreparedBuffer>(from_system, pool->threads());
  } catch (const Error&) {  // a limit of the address space
  }
}

std::optional<int64_t> OverwrittenMemory::bytes_of(const TensorTarget& target) {
  if (!target.sink) return static_cast<int64_t>(target.out.size());
  if (target.sink_memory.empty()) return {};
  int64_t bytes = 0;
  for (const std::span<std::byte> memory : target.sink_memory) {
    bytes += static_cast<int64_t>(memory.size());
  }
  return bytes;
}

int64_t OverwrittenMemory::room() const noexcept {
  const int64_t fresh = fresh_ ? static_cast<int64_t>(fresh_->bytes().size()) - fresh_used_ : 0;
  return at_hand_bytes_ + fresh;
}

int64_t OverwrittenMemory::ready() const noexcept {
  return at_hand_bytes_ + (fresh_ ? fresh_->ready() - fresh_used_ : 0);
}

void OverwrittenMemory::expect(int64_t bytes) noexcept {
  if (fresh_) fresh_->limit(fresh_used_ + std::max<int64_t>(0, bytes - at_hand_bytes_));
}

void OverwrittenMemory::keep(std::span<std::byte> memory) {
  DS_CHECK(static_cast<int64_t>(memory.size()) <= room(), Code::kInternal,
           "more is overwritten than was said");
  while (!memory.empty()) {
    std::span<std::byte> place;
    if (at_hand_bytes_ > 0) {
      std::span<std::byte>& first = at_hand_.back();
      place = first.first(std::min(first.size(), memory.size()));
      first = first.subspan(place.size());
      if (first.empty()) at_hand_.pop_back();
      at_hand_bytes_ -= static_cast<int64_t>(place.size());
    } else {
      place = fresh_->bytes().subspan(static_cast<size_t>(fresh_used_), memory.size());
      fresh_used_ += static_cast<int64_t>(place.size());
      const Stopwatch watch;
      fresh_->wait_for(fresh_used_);
      waited_ += watch.seconds();
    }
    pieces_.push_back({memory.first(place.size()), place});
    copy(place, pieces_.back().memory);
    memory = memory.subspan(place.size());
  }
}

// The last first: of what was overwritten twice the first copy counts.
void OverwrittenMemory::put_back() noexcept {
  for (; !pieces_.empty(); pieces_.pop_back()) copy(pieces_.back().memory, pieces_.back().copy);
}

void OverwrittenMemory::copy(std::span<std::byte> target, std::span<const std::byte> source) const {
  const auto size = static_cast<int64_t>(source.size());
  pool_->for_range(size, kSharedBytes, [&](int64_t begin, int64_t end) {
    io::stream_copy(target.data() + begin, source.data() + begin, static_cast<size_t>(end - begin));
  });
}

}  // namespace ds
