// The CPU device: memory in huge pages, kept for reuse (fresh pages cost more than most kernels);
// work runs at once on the calling thread.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "device/block_cache.h"
#include "device/device.h"

namespace ds {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = BlockCache::kLargeUnit;

class CpuEvent : public Event {
 public:
  bool ready() const override { return true; }
  void synchronize() override {}
};

class CpuStream : public Stream {
 public:
  void* native() const noexcept override { return nullptr; }
  void synchronize() override {}
  std::unique_ptr<Event> record() override { return std::make_unique<CpuEvent>(); }
  void wait(const Event&) override {}
};

class CpuBlocks : public BlockSource {
 public:
  void* take(int64_t size) override {
    const bool large = size >= kHugePage;
    const auto alignment = static_cast<size_t>(large ? kHugePage : kAlignment);
    void* const block = std::aligned_alloc(alignment, static_cast<size_t>(size));
    if (block != nullptr && large) ::madvise(block, static_cast<size_t>(size), MADV_HUGEPAGE);
    return block;
  }
  void give(void* block, int64_t) noexcept override { std::free(block); }
  std::string place() const override { return "the CPU"; }
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : blocks_(
            *this, source_,
            {.cache = options.cache, .limit_bytes = options.limit_bytes, .alignment = kAlignment}) {
  }

  DeviceKind kind() const noexcept override { return DeviceKind::kCpu; }
  int index() const noexcept override { return 0; }
  std::string describe() const override { return "cpu"; }

  void* allocate(int64_t bytes, MemoryTag tag) override { return blocks_.allocate(bytes, tag); }
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override {
    blocks_.deallocate(pointer, bytes, tag);
  }
  void trim() noexcept override { blocks_.trim(); }
  int64_t reserved_bytes() const noexcept override { return blocks_.reserved_bytes(); }
  int64_t system_allocations() const noexcept override { return blocks_.system_allocations(); }

  Stream& default_stream() override { return stream_; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<CpuStream>(); }
  void copy(void* target, const void* source, int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
  }
  void clear(void* target, int64_t bytes, Stream&) override {
    if (bytes > 0) std::memset(target, 0, static_cast<size_t>(bytes));
  }

 private:
  CpuStream stream_;
  CpuBlocks source_;
  BlockCache blocks_;  // after its source
};

}  // namespace

std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_shared<CpuDevice>(options);
}

}  // namespace ds
