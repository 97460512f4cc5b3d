// Events of a GPU, which are made once and used again. Only for the sources of a CUDA build.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda_support.h"
#include "device/device.h"

namespace ds::cuda {

// Events that nobody holds. Making one costs the host microseconds, and streams are ordered with
// several of them in every step. Any thread; lives as long as the device or one of its events.
class EventPool {
 public:
  explicit EventPool(const Place& place) : place_(place) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  const Place& place() const noexcept { return place_; }
  cudaEvent_t take();
  // Streams that wait for the event keep waiting for what it was recorded behind, whoever records
  // it next.
  void give(cudaEvent_t event) noexcept;
  void drop(cudaEvent_t event) noexcept;

  // While a stream of the GPU records work, what an event marks may be a place in that work: such
  // an event serves nobody else.
  void set_capturing(bool capturing) noexcept { capturing_ = capturing; }
  bool capturing() const noexcept { return capturing_; }

 private:
  const Place place_;
  std::atomic<bool> capturing_{false};
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
  size_t made_ = 0;  // and not destroyed: free_ has room for all
};

// Marks a place in a stream's work. The event behind it goes back to the pool when this ends, so it
// is never asked about the work of somebody else.
class CudaEvent : public Event {
 public:
  CudaEvent(std::shared_ptr<EventPool> pool, cudaStream_t stream);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool ready() const override;
  void synchronize() override;
  cudaEvent_t handle() const noexcept { return event_; }

 private:
  const std::shared_ptr<EventPool> pool_;
  const bool captured_;
  const cudaEvent_t event_;
};

}  // namespace ds::cuda
