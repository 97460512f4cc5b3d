// Every byte has an owner: memory accounts by tag, with current and peak bytes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace ds {

enum class MemoryTag : int32_t {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
  kCommunication,
  kKvCache,
  kIo,
  kOther,
};
inline constexpr int kMemoryTags = 9;
std::string_view memory_tag_name(MemoryTag tag);

// Counters of one device. Readable from any thread while others allocate.
class MemoryAccount {
 public:
  void add(MemoryTag tag, int64_t bytes) noexcept;
  void remove(MemoryTag tag, int64_t bytes) noexcept;
  void reset_peaks() noexcept;
  // What somebody means to hold at the fullest moment, by tag, for messages; all 0: nobody has
  // said.
  using ByTag = std::array<int64_t, kMemoryTags>;
  void set_planned(const ByTag& bytes) noexcept;
  int64_t planned(MemoryTag tag) const noexcept {
    return planned_[static_cast<size_t>(tag)].load();
  }
  // From now on `sum` counts what this account counts; before anything is counted.
  void count_in(MemoryAccount& sum) noexcept { sum_ = &sum; }

  int64_t now(MemoryTag tag) const noexcept { return slot(tag).now.load(); }
  int64_t peak(MemoryTag tag) const noexcept { return slot(tag).peak.load(); }
  int64_t total_now() const noexcept { return total_.now.load(); }
  int64_t total_peak() const noexcept { return total_.peak.load(); }

 private:
  struct Slot {
    std::atomic<int64_t> now{0};
    std::atomic<int64_t> peak{0};
    void add(int64_t bytes) noexcept;
  };
  const Slot& slot(MemoryTag tag) const noexcept { return slots_[static_cast<size_t>(tag)]; }

  std::array<Slot, kMemoryTags> slots_;
  std::array<std::atomic<int64_t>, kMemoryTags> planned_{};
  Slot total_;
  MemoryAccount* sum_ = nullptr;  // counts the same bytes
};

// What all devices of a kind hold in this process: the host's memory, and that of GPUs. A
// documented process-wide registry.
MemoryAccount& process_account(bool gpu) noexcept;

}  // namespace ds
