// Host memory that a GPU's copies reach directly: cudaHostAlloc behind the cache that all devices
// share, since locking pages is slow.
#include "base/error.h"
#include "device/block_cache.h"
#include "device/cuda_support.h"
#include "device/host_device.h"

namespace ds::cuda {
namespace {

class PinnedBlocks : public BlockSource {
 public:
  PinnedBlocks(const Place& place, std::string name) : place_(place), name_(std::move(name)) {}

  void* take(int64_t size) override {
    void* block = nullptr;
    const cudaError_t status = call(place_, [&] {
      return cudaHostAlloc(&block, static_cast<size_t>(size), cudaHostAllocPortable);
    });
    if (status == cudaErrorMemoryAllocation) return nullptr;
    check(status, "locking ", format_bytes(size), " of host memory for ", name_);
    return block;
  }
  void give(void* block, int64_t) noexcept override {
    call(place_, [&] { return cudaFreeHost(block); });
  }
  std::string place() const override { return str_cat("the host, in pages locked for ", name_); }

 private:
  const Place place_;
  const std::string name_;
};

class PinnedMemory : public HostDevice {
 public:
  PinnedMemory(const Place& place, const std::string& gpu)
      : name_(str_cat("host memory of ", gpu)),
        source_(place, gpu),
        blocks_(*this, source_, {.cache = true, .limit_bytes = 0, .alignment = 64}) {}

  std::string describe() const override { return name_; }
  void* allocate(int64_t bytes, MemoryTag tag) override { return blocks_.allocate(bytes, tag); }
  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override {
    blocks_.deallocate(pointer, bytes, tag);
  }
  void trim() noexcept override { blocks_.trim(); }
  int64_t reserved_bytes() const noexcept override { return blocks_.reserved_bytes(); }
  int64_t system_allocations() const noexcept override { return blocks_.system_allocations(); }

 private:
  const std::string name_;
  PinnedBlocks source_;
  BlockCache blocks_;  // after its source
};

}  // namespace

std::shared_ptr<Device> make_pinned_memory(const Place& place, const std::string& gpu) {
  return std::make_shared<PinnedMemory>(place, gpu);
}

}  // namespace ds::cuda
