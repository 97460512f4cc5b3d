#include "device/caller_memory.h"

#include <array>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "device/device.h"

namespace ds {
namespace {

struct Registry {
  std::mutex mutex;
  std::array<std::shared_ptr<const CallerMemory>, 2> by_kind;  // the CPU, GPUs
};

// Never destroyed: devices may end while the process does.
Registry& registry() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Registry* const one = new Registry;
  return *one;
}

size_t place_of(DeviceKind kind) { return kind == DeviceKind::kCpu ? 0 : 1; }

}  // namespace

void* CallerMemory::take(int64_t bytes, int64_t alignment, int device_index) const {
  void* const memory = allocate_(bytes, alignment, device_index);
  if (reinterpret_cast<uintptr_t>(memory) % static_cast<uintptr_t>(alignment) == 0) return memory;
  deallocate_(memory, bytes, device_index);
  fail(Code::kCallback, "the allocator gave memory at ", memory, ", which is not aligned to ",
       alignment, " bytes");
}

void set_caller_memory(DeviceKind kind, std::shared_ptr<const CallerMemory> memory) {
  Registry& all = registry();
  {
    const std::lock_guard lock(all.mutex);
    all.by_kind[place_of(kind)].swap(memory);
  }
  // The one before may end here, which calls its release outside of the lock.
}

std::shared_ptr<const CallerMemory> caller_memory(DeviceKind kind) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.by_kind[place_of(kind)];
}

}  // namespace ds
