// Memory that is counted and not there: a pass over it takes what a real one takes, at the same
// places of an arena like that of the CPU, and computes nothing. For plans.
#pragma once

#include "device/arena.h"
#include "device/host_device.h"

namespace ds {

class CountingDevice : public HostDevice {
 public:
  CountingDevice()
      : HostDevice(/*there=*/false), arena_(0, Arena::Pages::kUntouched), buffers_(*this) {}

  bool computes() const noexcept override { return false; }
  std::string describe() const override { return "memory that is only counted"; }
  void* allocate(int64_t bytes, MemoryTag tag) override;
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override;
  void trim() noexcept override { arena_.trim(); }
  // What a real arena would hold from the system, and buffers of files beside it at most.
  int64_t reserved_bytes() const noexcept override { return arena_.held_bytes() + buffers_.most; }
  int64_t system_allocations() const noexcept override { return arena_.times_grown(); }

  // Memory that has pages of its own beside the arena, such as that files are read into; counted
  // with all other.
  static std::shared_ptr<Device> own_pages(const std::shared_ptr<CountingDevice>& device) {
    return {device, &device->buffers_};
  }

  // Small pieces alone, which the host reads for what to do next; all others stay zeros.
  void copy(void* target, const void* source, int64_t bytes, Stream& stream) override;
  void clear(void* target, int64_t bytes, Stream& stream) override;

  // What was held at the fullest moment, by tag.
  using ByTag = MemoryAccount::ByTag;
  const ByTag& fullest() const noexcept { return fullest_; }

 private:
  struct OwnPages final : HostDevice {
    explicit OwnPages(CountingDevice& device)
        : HostDevice(/*there=*/false), all(device), arena(0, Arena::Pages::kUntouched) {}

    bool computes() const noexcept override { return false; }
    std::string describe() const override { return all.describe(); }
    void* allocate(int64_t bytes, MemoryTag tag) override;
    void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override;
    void trim() noexcept override { arena.trim(); }
    int64_t reserved_bytes() const noexcept override { return most; }
    int64_t system_allocations() const noexcept override { return arena.times_grown(); }
    void copy(void* target, const void* source, int64_t bytes, Stream& stream) override {
      all.copy(target, source, bytes, stream);
    }
    void clear(void* target, int64_t bytes, Stream& stream) override {
      all.clear(target, bytes, stream);
    }

    CountingDevice& all;
    Arena arena;  // places alone: what is used at most counts
    int64_t now = 0, most = 0;
  };

  void* allocate_in(Arena& arena, int64_t bytes, MemoryTag tag);

  Arena arena_;
  OwnPages buffers_;
  ByTag fullest_{};
  int64_t most_ = 0;
};

}  // namespace ds
