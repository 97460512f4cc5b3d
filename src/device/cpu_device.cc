// The CPU device: an allocator that keeps freed blocks (fresh pages cost more than most kernels),
// asks for huge pages, and counts every byte.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace ds {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;

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

// Sizes are rounded so that slightly different requests share blocks, wasting at most 1/8.
int64_t size_class(int64_t bytes) {
  if (bytes <= 4096) return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  int64_t step = 512;
  while (step * 16 < bytes) step *= 2;
  const int64_t rounded = (bytes + step - 1) / step * step;
  return rounded < kHugePage ? rounded : (rounded + kHugePage - 1) / kHugePage * kHugePage;
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : options_(options) {}
  ~CpuDevice() override { trim(); }

  DeviceKind kind() const noexcept override { return DeviceKind::kCpu; }
  int index() const noexcept override { return 0; }
  std::string describe() const override { return "cpu"; }

  void* allocate(int64_t bytes, MemoryTag tag) override {
    if (bytes == 0) return nullptr;
    DS_CHECK(bytes > 0 && bytes < int64_t{1} << 50, Code::kOutOfMemory, "cannot allocate ", bytes,
             " bytes for ", memory_tag_name(tag));
    const int64_t size = size_class(bytes);
    void* pointer = take_cached(size);
    if (pointer == nullptr) pointer = take_fresh(size, tag);
    account_.add(tag, size);
    return pointer;
  }

  void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept override {
    if (pointer == nullptr) return;
    const int64_t size = size_class(bytes);
    account_.remove(tag, size);
    if (options_.cache) {
      const std::lock_guard lock(mutex_);
      try {
        cache_[size].push_back(pointer);
        return;
      } catch (...) {  // no memory for the bookkeeping: give the block back instead
      }
    }
    release(pointer, size);
  }

  void trim() noexcept override {
    const std::lock_guard lock(mutex_);
    for (auto& [size, blocks] : cache_) {
      for (void* block : blocks) release(block, size);
    }
    cache_.clear();
  }

  int64_t reserved_bytes() const noexcept override { return reserved_.load(); }
  int64_t system_allocations() const noexcept override { return system_allocations_.load(); }

  Stream& default_stream() override { return stream_; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<CpuStream>(); }
  void copy(void* target, const void* source, int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
  }
  void clear(void* target, int64_t bytes, Stream&) override {
    if (bytes > 0) std::memset(target, 0, static_cast<size_t>(bytes));
  }

 private:
  void* take_cached(int64_t size) {
    const std::lock_guard lock(mutex_);
    const auto found = cache_.find(size);
    if (found == cache_.end() || found->second.empty()) return nullptr;
    void* const pointer = found->second.back();
    found->second.pop_back();
    return pointer;
  }

  void* take_fresh(int64_t size, MemoryTag tag) {
    const auto over_limit = [&] {
      return options_.limit_bytes > 0 && reserved_.load() + size > options_.limit_bytes;
    };
    if (over_limit()) trim();
    void* pointer = nullptr;
    if (!over_limit()) {
      const auto alignment = static_cast<size_t>(size >= kHugePage ? kHugePage : kAlignment);
      pointer = std::aligned_alloc(alignment, static_cast<size_t>(size));
      if (pointer == nullptr) {
        trim();
        pointer = std::aligned_alloc(alignment, static_cast<size_t>(size));
      }
    }
    if (pointer == nullptr) {
      fail(Code::kOutOfMemory, "out of memory on the CPU: ", format_bytes(size), " for ",
           memory_tag_name(tag), " could not be had.\n", format_memory_report(*this),
           "What helps: a smaller train_micro_batch_size_per_gpu, activation_checkpointing, a "
           "shorter sequence, bf16.");
    }
    if (size >= kHugePage) ::madvise(pointer, static_cast<size_t>(size), MADV_HUGEPAGE);
    reserved_.fetch_add(size);
    system_allocations_.fetch_add(1);
    return pointer;
  }

  void release(void* pointer, int64_t size) noexcept {
    std::free(pointer);
    reserved_.fetch_sub(size);
  }

  CpuDeviceOptions options_;
  CpuStream stream_;
  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> cache_;
  std::atomic<int64_t> reserved_{0};
  std::atomic<int64_t> system_allocations_{0};
};

}  // namespace

std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_shared<CpuDevice>(options);
}

std::string format_memory_report(const Device& device) {
  std::string out = str_cat("memory of ", device.describe(), " (now / peak):\n");
  const MemoryAccount& account = device.account();
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    if (account.peak(tag) == 0) continue;
    out += str_cat("  ", memory_tag_name(tag), ": ", format_bytes(account.now(tag)), " / ",
                   format_bytes(account.peak(tag)), "\n");
  }
  out += str_cat("  total: ", format_bytes(account.total_now()), " / ",
                 format_bytes(account.total_peak()), ", reserved ",
                 format_bytes(device.reserved_bytes()), "\n");
  return out;
}

}  // namespace ds
