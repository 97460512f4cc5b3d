// Memory that is counted and not there: a pass over it takes what a real one takes, at the same
// places of an arena like that of the CPU, and computes nothing. For plans.
#pragma once

#include "device/arena.h"
#include "device/host_device.h"

namespace ds {

class CountingDevice : public HostDevice {
 public:
  CountingDevice()
      : HostDevice(/*there=*/false),
        arena_(0, Arena::Pages::kUntouched),
        buffers_(0, Arena::Pages::kUntouched) {}

  bool computes() const noexcept override { return false; }
  std::string describe() const override { return "memory that is only counted"; }
  void* allocate(int64_t bytes, MemoryTag tag) override;
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override;
  void trim() noexcept override { arena_.trim(); }
  // What a real arena would hold from the system, and buffers of files beside it at most.
  int64_t reserved_bytes() const noexcept override {
    return arena_.held_bytes() + account_.peak(MemoryTag::kIo);
  }
  int64_t system_allocations() const noexcept override { return arena_.times_grown(); }

  // Small pieces alone, which the host reads for what to do next; all others stay zeros.
  void copy(void* target, const void* source, int64_t bytes, Stream& stream) override;
  void clear(void* target, int64_t bytes, Stream& stream) override;

  // What was held at the fullest moment, by tag.
  using ByTag = MemoryAccount::ByTag;
  const ByTag& fullest() const noexcept { return fullest_; }

 private:
  Arena& arena_of(MemoryTag tag) { return tag == MemoryTag::kIo ? buffers_ : arena_; }

  Arena arena_;
  Arena buffers_;  // of kIo, which have pages of their own
  ByTag fullest_{};
  int64_t most_ = 0;
};

}  // namespace ds
