// The CUDA device and the GPUs that a process sees. Builds without CUDA have these functions too;
// there they say why nothing can be had.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace ds {

struct CudaDeviceInfo {
  int index = 0;     // as make_cuda_device takes it; CUDA_VISIBLE_DEVICES decides what is counted
  std::string name;  // "unreadable: <error>" and zeros below when the GPU does not answer
  int64_t memory_bytes = 0;
  int compute_major = 0;  // compute capability 9.0: 9 and 0
  int compute_minor = 0;
  int multiprocessors = 0;
  std::string uuid;  // of the GPU itself, whatever its number here: 32 hexadecimal digits
};

// Empty without a driver, a GPU or CUDA in this build; `why_none` then says which (and is cleared
// otherwise). Never throws for such reasons and creates no CUDA context.
std::vector<CudaDeviceInfo> list_cuda_devices(std::string* why_none = nullptr);

// "13.0" style: of the runtime in this build, and the newest that the driver supports. Empty when
// there is none.
std::string cuda_runtime_version();
std::string cuda_driver_version();

// Memory that recorded work keeps: between launches nobody else gets it. Work that is recorded into
// the same memory may leave nothing there that the next launch of other work must not overwrite.
class GraphMemory {
 public:
  virtual ~GraphMemory() = default;
  virtual int64_t bytes() const = 0;
};

// Work that was recorded once: kernels with the arguments that they had, copies and clears.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Queues all of it on the default stream. What it uses besides its GraphMemory must exist.
  virtual void launch() = 0;
  virtual int64_t nodes() const noexcept = 0;
};

// What kernels and copies need besides Device.
class CudaDevice : public Device {
 public:
  // Streaming multiprocessors.
  virtual int processors() const noexcept = 0;
  // Compute capability 9.0 is 90.
  virtual int capability() const noexcept = 0;
  // Host memory that the GPU's copies reach directly (page-locked). It has an account of its own
  // and keeps freed blocks; what goes back while a copy still uses it may serve the next request.
  virtual const std::shared_ptr<Device>& pinned() const noexcept = 0;
  // Copies bytes of the host, from any memory, in the order of the default stream. `source` may
  // change when the call returns; it waits only where much is on its way already.
  virtual void upload(void* target, const void* source, int64_t bytes) = 0;
  // Copies `rows` rows of `width` bytes; row i begins i * pitch bytes after the first one.
  virtual void copy_rows(void* target, int64_t target_pitch, const void* source,
                         int64_t source_pitch, int64_t width, int64_t rows, Stream& stream) = 0;
  // A stream of the caller on this GPU (a cudaStream_t), to be ordered with those of the device.
  // It stays the caller's, and must live longer than what is returned.
  virtual std::unique_ptr<Stream> borrow_stream(void* native) = 0;
  virtual std::shared_ptr<GraphMemory> make_graph_memory() = 0;
  // Records what `body` queues on the default stream instead of running it. What `body` allocates
  // meanwhile is taken from `memory` (one of this device's), which takes over freed blocks of the
  // cache and grows where it must. `body` may not wait for the GPU, upload, or use other streams:
  // then nothing is recorded, and this throws. One recording at a time.
  virtual std::unique_ptr<DeviceGraph> record(const std::shared_ptr<GraphMemory>& memory,
                                              const std::function<void()>& body) = 0;
  // Makes the GPU current on the calling thread, for launches of kernels; leave() restores what
  // enter() returned.
  virtual void* enter() = 0;
  virtual void leave(void* before) noexcept = 0;
};

// Holds a GPU current on this thread.
class DeviceScope {
 public:
  explicit DeviceScope(CudaDevice& device) : device_(device), before_(device.enter()) {}
  ~DeviceScope() { device_.leave(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  CudaDevice& device_;
  void* before_;
};

struct CudaDeviceOptions {
  bool cache = true;        // keep freed blocks for reuse
  int64_t limit_bytes = 0;  // 0 = what the GPU has
};

// Error(kUnsupported) when list_cuda_devices() is empty, Error(kInvalidArgument) for an index that
// is not in it, Error(kDevice) when the GPU cannot be started.
//
// Streams, the default one too, are non-blocking: they do not wait for CUDA's legacy default
// stream, so other users of the GPU in this process need events to order their work with ours.
// Every call leaves the calling thread's current CUDA context as it was and creates none on
// other GPUs.
std::shared_ptr<CudaDevice> make_cuda_device(int index, const CudaDeviceOptions& options = {});

}  // namespace ds
