// The CPU devices: memory from an arena or, for single tensors, the heap; work runs at once on the
// calling thread.
#include <sys/mman.h>

#include <cstdlib>

#include "device/arena.h"
#include "device/block_cache.h"
#include "device/caller_memory.h"
#include "device/host_device.h"

namespace ds {
namespace {

constexpr int64_t kAlignment = Arena::kAlignment;
constexpr int64_t kHugePage = BlockCache::kLargeUnit;

class CpuBlocks : public BlockSource {
 public:
  void* take(int64_t size) override {
    if (memory_) return memory_->take(size, kAlignment, 0);
    const bool large = size >= kHugePage;
    const auto alignment = static_cast<size_t>(large ? kHugePage : kAlignment);
    void* const block = std::aligned_alloc(alignment, static_cast<size_t>(size));
    if (block != nullptr && large) ::madvise(block, static_cast<size_t>(size), MADV_HUGEPAGE);
    return block;
  }
  void give(void* block, int64_t size) noexcept override {
    if (memory_) return memory_->give(block, size, 0);
    std::free(block);
  }
  std::string place() const override {
    return memory_ ? "the CPU, whose memory the program's allocator gives" : "the CPU";
  }

 private:
  const std::shared_ptr<const CallerMemory> memory_ = caller_memory(DeviceKind::kCpu);
};

class CpuDevice : public HostDevice {
 public:
  std::string describe() const override { return "cpu"; }
};

// For single tensors, whose blocks come from the heap and go back at once, and for memory of the
// program's allocator.
class CpuHeapDevice : public CpuDevice {
 public:
  CpuHeapDevice(int64_t limit, bool cache)
      : blocks_(*this, source_, {.cache = cache, .limit_bytes = limit, .alignment = kAlignment}) {}

  void* allocate(int64_t bytes, MemoryTag tag) override { return blocks_.allocate(bytes, tag); }
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override {
    blocks_.deallocate(pointer, bytes, tag);
  }
  void trim() noexcept override { blocks_.trim(); }
  int64_t reserved_bytes() const noexcept override { return blocks_.reserved_bytes(); }
  int64_t system_allocations() const noexcept override { return blocks_.system_allocations(); }

 private:
  CpuBlocks source_;
  BlockCache blocks_;  // after its source
};

// For engines and models.
class CpuArenaDevice : public CpuDevice {
 public:
  explicit CpuArenaDevice(int64_t limit) : limit_(limit), arena_(limit) {}

  void* allocate(int64_t bytes, MemoryTag tag) override {
    if (bytes == 0) return nullptr;
    check_request(bytes, tag);
    void* const pointer = arena_.allocate(bytes);
    if (pointer == nullptr) fail_out_of_memory(*this, "the CPU", bytes, tag, limit_);
    account_.add(tag, Arena::rounded(bytes));
    return pointer;
  }
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override {
    if (pointer == nullptr) return;
    account_.remove(tag, Arena::rounded(bytes));
    arena_.deallocate(pointer, bytes);
  }
  void use_threads(int most) noexcept override { arena_.use_threads(most); }
  void trim() noexcept override { arena_.trim(); }
  int64_t reserved_bytes() const noexcept override { return arena_.held_bytes(); }
  int64_t system_allocations() const noexcept override { return arena_.times_grown(); }

 private:
  const int64_t limit_;
  Arena arena_;
};

}  // namespace

std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  if (options.cache && !caller_memory(DeviceKind::kCpu)) {
    return std::make_shared<CpuArenaDevice>(options.limit_bytes);
  }
  return std::make_shared<CpuHeapDevice>(options.limit_bytes, options.cache);
}

}  // namespace ds
