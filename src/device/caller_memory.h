// Memory of a kind of device that the program provides instead of the system: one of the documented
// process-wide registries. Devices take what is registered when they are made and keep it until
// they end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace ds {

enum class DeviceKind : int32_t;

class CallerMemory {
 public:
  using Allocate = std::function<void*(int64_t bytes, int64_t alignment, int device_index)>;
  using Deallocate = std::function<void(void* memory, int64_t bytes, int device_index)>;

  CallerMemory(Allocate allocate, Deallocate deallocate, std::function<void()> release)
      : allocate_(std::move(allocate)),
        deallocate_(std::move(deallocate)),
        release_(std::move(release)) {}
  ~CallerMemory() {
    if (release_) release_();
  }
  CallerMemory(const CallerMemory&) = delete;
  CallerMemory& operator=(const CallerMemory&) = delete;

  // Null when there is none; throws kCallback for memory that is not aligned.
  void* take(int64_t bytes, int64_t alignment, int device_index) const;
  void give(void* memory, int64_t bytes, int device_index) const noexcept {
    deallocate_(memory, bytes, device_index);
  }

 private:
  Allocate allocate_;
  Deallocate deallocate_;
  std::function<void()> release_;
};

// Null: the system.
void set_caller_memory(DeviceKind kind, std::shared_ptr<const CallerMemory> memory);
std::shared_ptr<const CallerMemory> caller_memory(DeviceKind kind);

}  // namespace ds
