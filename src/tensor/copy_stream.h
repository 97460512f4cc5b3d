// Copies between a GPU and the host that go on beside the GPU's computation.
#pragma once

#include <memory>

#include "device/device.h"

namespace ds {

// A stream of a GPU that only copies. Nothing here waits but synchronize() and the destructor:
// follow() and lead() let the streams wait for each other. Host memory should be pinned
// (host_memory_of); it stays untouched until the copy's event.
class CopyStream {
 public:
  explicit CopyStream(std::shared_ptr<Device> gpu);
  ~CopyStream();  // waits, since copies use memory of others
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // Copies from now on come after what the default stream has queued.
  void follow();
  void copy(void* to, const void* from, int64_t bytes);
  // An event of the copies so far.
  std::shared_ptr<Event> mark();
  // What the default stream gets from now on comes after the copies so far.
  void lead();
  void synchronize();

 private:
  const std::shared_ptr<Device> gpu_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace ds
