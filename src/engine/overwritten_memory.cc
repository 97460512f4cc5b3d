#include "engine/overwritten_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/reader.h"
#include "engine/stopwatch.h"

namespace ds {
namespace {

constexpr int64_t kSharedBytes = int64_t{1} << 20;  // of a thread at a time
constexpr double kLeastRate = 2e9;                  // bytes per second
constexpr size_t kTimedBytes = size_t{8} << 20;     // the time for less says nothing

// Of what reading the target overwrites; nothing where that is not known.
std::optional<int64_t> overwritten_bytes(const TensorTarget& target) {
  if (!target.sink) return static_cast<int64_t>(target.out.size());
  if (target.sink_memory.empty()) return {};
  int64_t bytes = 0;
  for (const std::span<std::byte> memory : target.sink_memory) {
    bytes += static_cast<int64_t>(memory.size());
  }
  return bytes;
}

}  // namespace

std::optional<OverwrittenMemory> OverwrittenMemory::of(std::span<const TensorTarget> targets,
                                                       int64_t free_bytes, ThreadPool* pool) {
  int64_t bytes = 0;
  for (const TensorTarget& target : targets) {
    const std::optional<int64_t> here = overwritten_bytes(target);
    if (!here) return {};
    bytes += *here;
  }
  if (free_bytes >= 0 && bytes > free_bytes / 2) return {};
  try {
    return OverwrittenMemory(bytes, pool);
  } catch (const Error&) {  // a limit of the address space
    return {};
  }
}

void OverwrittenMemory::keep(std::span<std::byte> memory) {
  DS_CHECK(memory.size() <= static_cast<size_t>(copies_.size()) - used_, Code::kInternal,
           "more is overwritten than was said");
  pieces_.push_back({memory, used_});
  const Stopwatch watch;
  copy(copies_.data() + used_, memory);
  seconds_ += watch.seconds();
  used_ += memory.size();
}

bool OverwrittenMemory::comes_slowly() noexcept {
  constexpr size_t kPage = 4096;
  if (copies_.bytes().size() < kTimedBytes) return false;
  const Stopwatch watch;
  for (size_t at = 0; at < kTimedBytes; at += kPage) {
    *static_cast<volatile std::byte*>(copies_.data() + at) = std::byte{0};
  }
  return static_cast<double>(kTimedBytes) < kLeastRate * watch.seconds();
}

bool OverwrittenMemory::was_slow() noexcept {
  const size_t bytes = used_ - std::exchange(asked_, used_);
  const double seconds = std::exchange(seconds_, 0);
  return bytes >= kTimedBytes && static_cast<double>(bytes) < kLeastRate * seconds;
}

// The last first: of what was overwritten twice the first copy counts.
void OverwrittenMemory::put_back() noexcept {
  for (; !pieces_.empty(); pieces_.pop_back()) {
    const Piece& piece = pieces_.back();
    copy(piece.memory.data(), copies_.bytes().subspan(piece.at, piece.memory.size()));
  }
  used_ = asked_ = 0;
}

void OverwrittenMemory::copy(std::byte* target, std::span<const std::byte> source) const {
  const auto size = static_cast<int64_t>(source.size());
  pool_->for_range(size, kSharedBytes, [&](int64_t begin, int64_t end) {
    io::stream_copy(target + begin, source.data() + begin, static_cast<size_t>(end - begin));
  });
}

}  // namespace ds
