#include "engine/load_protection.h"

#include <algorithm>

#include "engine/stopwatch.h"

namespace ds {
namespace {

// Waiting so long costs less than the disk's pause between two parts.
constexpr int64_t kHardlyWorth = int64_t{32} << 20;

int64_t overwritten_bytes(std::span<const TensorTarget> targets) {
  int64_t bytes = 0;
  for (const TensorTarget& target : targets) {
    bytes += OverwrittenMemory::bytes_of(target).value_or(0);
  }
  return bytes;
}

int64_t bytes_from_system(std::span<const TensorTarget> targets,
                          std::span<const std::span<std::byte>> at_hand, int64_t free) {
  int64_t bytes = overwritten_bytes(targets);
  for (const std::span<std::byte> memory : at_hand) bytes -= static_cast<int64_t>(memory.size());
  return free < 0 ? bytes : std::min(bytes, free / 2);
}

}  // namespace

int64_t bytes_to_check(const LoadProspect& p) {
  if (p.memory_bytes <= 0) return 0;
  const auto missing = [&](double memory) {  // in bytes of files
    return (static_cast<double>(p.memory_bytes) - memory) * static_cast<double>(p.file_bytes) /
           static_cast<double>(p.memory_bytes);
  };
  // There never is room for so many.
  double out = missing(static_cast<double>(p.room));
  // While a byte is read or checked so much memory comes.
  if (p.disk_rate > 0 && p.memory_rate > 0) {
    const double comes = static_cast<double>(p.file_bytes) / p.disk_rate * p.memory_rate;
    const double late = missing(static_cast<double>(p.ready) + comes);
    if (late > static_cast<double>(kHardlyWorth)) out = std::max(out, late);
  }
  return static_cast<int64_t>(std::max(out, 0.0));
}

bool LoadProtection::protects(std::span<const TensorTarget> targets) {
  return std::all_of(targets.begin(), targets.end(), [](const TensorTarget& target) {
    return OverwrittenMemory::bytes_of(target).has_value();
  });
}

LoadProtection::LoadProtection(std::span<const TensorTarget> targets,
                               std::vector<std::span<std::byte>> at_hand, int64_t free,
                               ThreadPool* pool)
    : kept_(at_hand, bytes_from_system(targets, at_hand, free), pool) {}

// How many of the last ones had better be checked now.
size_t LoadProtection::targets_to_check(std::span<const TensorTarget> open) const {
  const LoadProspect prospect{LoadParts::bytes_of(open),
                              overwritten_bytes(open),
                              kept_.ready(),
                              kept_.room(),
                              seconds_ > 0 ? static_cast<double>(bytes_) / seconds_ : 0,
                              kept_.rate()};
  int64_t left = bytes_to_check(prospect), needed = prospect.memory_bytes;
  size_t count = 0;
  for (; count < open.size(); ++count) {
    const std::span<const TensorTarget> last = open.subspan(open.size() - 1 - count, 1);
    const int64_t bytes = LoadParts::bytes_of(last);
    // Where there is room, one that is hardly late is waited for.
    if (needed <= prospect.room && (left <= 0 || 2 * left < bytes)) break;
    left -= bytes;
    needed -= overwritten_bytes(last);
  }
  return count;
}

void LoadProtection::next(const CheckpointReader& reader, LoadParts& parts) {
  const std::span<const TensorTarget> open = parts.open();
  if (open.empty() || !parts.next()) return;
  const Stopwatch watch;
  const double waited = kept_.waited();
  const size_t late = targets_to_check(open);
  kept_.expect(overwritten_bytes(open.first(open.size() - late)));
  std::span<const TensorTarget> part;
  if (late > 0) {
    part = parts.check(late, parts.bytes_of_part());
    reader.check_all(part);
  } else {
    // While memory is still to come, it is looked at again soon.
    const bool known = seconds_ > 0, all_there = kept_.ready() >= overwritten_bytes(open);
    part = parts.take(
        known ? (all_there ? parts.bytes_of_part() : LoadParts::kUsualBytes)
              : std::clamp(kept_.ready(), LoadParts::kFirstBytes, LoadParts::kUsualBytes));
    reader.read_all(part, [this](std::span<std::byte> memory) { kept_.keep(memory); });
  }
  seconds_ += watch.seconds() - (kept_.waited() - waited);
  bytes_ += LoadParts::bytes_of(part);
}

}  // namespace ds
