// The time that work takes on a GPU. Only for the sources of a CUDA build.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace ds::kernels {

inline void timing_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  fail(Code::kDevice, "CUDA: ", what, " failed: ", cudaGetErrorName(status), " (",
       cudaGetErrorString(status), ")");
}

// Whether work that is queued now becomes part of a graph.
inline bool stream_records(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  timing_check(cudaStreamIsCapturing(stream, &status), "asking whether a stream records");
  return status != cudaStreamCaptureStatusNone;
}

// Memory of the current GPU that is asked of CUDA and given back at once: an exception to the rule
// that kernels allocate nothing, for the few products that are timed.
class ApartMemory {
 public:
  ApartMemory() = default;
  ApartMemory(const ApartMemory&) = delete;
  ApartMemory& operator=(const ApartMemory&) = delete;
  ~ApartMemory() {
    if (memory_ != nullptr) static_cast<void>(cudaFree(memory_));  // waits for its users
  }
  // False when there is none.
  bool take(int64_t bytes) {
    const cudaError_t status = cudaMalloc(&memory_, static_cast<size_t>(bytes));
    if (status == cudaSuccess) return true;
    memory_ = nullptr;
    static_cast<void>(cudaGetLastError());
    if (status == cudaErrorMemoryAllocation) return false;
    timing_check(status, "asking for memory");
    return false;
  }
  void* memory() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

class ProductTimer {
 public:
  explicit ProductTimer(cudaStream_t stream) : stream_(stream) {}

  // Queues the work once to warm up and then some times more, waits, and returns the seconds of
  // the fastest run; less than 0 when it could not be queued.
  template <class Work>
  double fastest(const Work& work) {
    if (!work()) return -1;
    record(0);
    for (size_t run = 1; run < events_.size(); ++run) {
      if (!work()) return -1;
      record(run);
    }
    timing_check(cudaEventSynchronize(events_.back().handle), "waiting for a timed product");
    double least = -1;
    for (size_t run = 1; run < events_.size(); ++run) {
      float milliseconds = 0;
      timing_check(
          cudaEventElapsedTime(&milliseconds, events_[run - 1].handle, events_[run].handle),
          "asking for the time of a product");
      least = run == 1 ? milliseconds : std::min(least, double{milliseconds});
    }
    return least * 1e-3;
  }

 private:
  static constexpr size_t kRuns = 3;
  struct Event {
    cudaEvent_t handle = nullptr;
    Event() { timing_check(cudaEventCreate(&handle), "creating an event"); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() { static_cast<void>(cudaEventDestroy(handle)); }
  };
  void record(size_t at) {
    timing_check(cudaEventRecord(events_[at].handle, stream_), "recording an event");
  }

  cudaStream_t stream_;
  std::array<Event, kRuns + 1> events_;
};

}  // namespace ds::kernels
