// What the engine asks of a device: memory by tag, ordered work (streams), and copies. The CPU
// device runs everything at once on the calling thread; CUDA fills the same interface.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/memory.h"

namespace ds {

enum class DeviceKind : int32_t { kCpu = 1, kCuda = 2 };  // DLPack's numbers

class Event {
 public:
  virtual ~Event() = default;
  virtual bool ready() const = 0;
  virtual void synchronize() = 0;
};

// Work queued on a stream runs in order. `native` is what DLPack exchanges (a cudaStream_t).
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void* native() const noexcept = 0;
  virtual void synchronize() = 0;
  virtual std::unique_ptr<Event> record() = 0;
  virtual void wait(const Event& event) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const noexcept = 0;
  // False where memory is counted and holds nothing: operators ask for theirs and compute nothing.
  virtual bool computes() const noexcept { return true; }
  virtual int index() const noexcept = 0;
  virtual std::string describe() const = 0;

  // Memory aligned to at least 64 bytes, not cleared. `bytes` 0 gives null. Throws
  // Error(kOutOfMemory) with the account and advice.
  // Memory follows the order of the default stream: what is freed may serve the next request while
  // queued work still uses it. Other streams wait for the default stream before they use new
  // memory, and the default stream waits for them before their memory is freed.
  virtual void* allocate(int64_t bytes, MemoryTag tag) = 0;
  virtual void deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept = 0;
  // How many threads, the caller's among them, may work on getting memory from the system.
  virtual void use_threads(int /*most*/) noexcept {}
  // Gives cached, unused memory back to the system.
  virtual void trim() noexcept = 0;
  // Bytes held from the system (used and cached), and how often the system was asked.
  virtual int64_t reserved_bytes() const noexcept = 0;
  virtual int64_t system_allocations() const noexcept = 0;

  virtual Stream& default_stream() = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // Both pointers belong to this device or to the host; host memory stays as it is until the
  // stream has come that far. The stream is one of this device.
  virtual void copy(void* target, const void* source, int64_t bytes, Stream& stream) = 0;
  // The memory belongs to this device.
  virtual void clear(void* target, int64_t bytes, Stream& stream) = 0;

  const MemoryAccount& account() const noexcept { return account_; }
  MemoryAccount& account() noexcept { return account_; }

 protected:
  MemoryAccount account_;
};

struct CpuDeviceOptions {
  bool cache = true;        // keep freed blocks for reuse; engines want this, single tensors do not
  int64_t limit_bytes = 0;  // 0 = no limit beyond the system's
};
std::shared_ptr<Device> make_cpu_device(const CpuDeviceOptions& options = {});

// What allocators say: kOutOfMemory for a size that cannot be meant, ...
void check_request(int64_t bytes, MemoryTag tag);
// ... and for one that cannot be had, with the account and what helps. `place` says whose memory;
// `limit` in bytes, 0 = none.
[[noreturn]] void fail_out_of_memory(const Device& device, const std::string& place, int64_t bytes,
                                     MemoryTag tag, int64_t limit);

}  // namespace ds
