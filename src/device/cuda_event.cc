#include "device/cuda_event.h"

#include <utility>

namespace ds::cuda {
namespace {

std::string name_of(const Place& place) { return str_cat("cuda:", place.index); }

}  // namespace

EventPool::~EventPool() {
  for (const cudaEvent_t event : free_) {
    call(place_, [&] { return cudaEventDestroy(event); });
  }
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
    free_.reserve(made_ + 1);  // so that give() needs no memory
    ++made_;
  }
  cudaEvent_t event = nullptr;
  const cudaError_t status =
      call(place_, [&] { return cudaEventCreateWithFlags(&event, cudaEventDisableTiming); });
  if (status != cudaSuccess) {
    const std::lock_guard lock(mutex_);
    --made_;
  }
  check(status, "creating an event on ", name_of(place_));
  return event;
}

void EventPool::give(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

void EventPool::drop(cudaEvent_t event) noexcept {
  call(place_, [&] { return cudaEventDestroy(event); });
  const std::lock_guard lock(mutex_);
  --made_;
}

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool, cudaStream_t stream)
    : pool_(std::move(pool)), captured_(pool_->capturing()), event_(pool_->take()) {
  const cudaError_t status = call(pool_->place(), [&] { return cudaEventRecord(event_, stream); });
  if (status != cudaSuccess) pool_->drop(event_);  // what it marks now nobody knows
  check(status, "recording an event on ", name_of(pool_->place()));
}

CudaEvent::~CudaEvent() { captured_ ? pool_->drop(event_) : pool_->give(event_); }

bool CudaEvent::ready() const {
  const cudaError_t status = call(pool_->place(), [&] { return cudaEventQuery(event_); });
  if (status == cudaErrorNotReady) return false;
  check(status, "asking for an event on ", name_of(pool_->place()));
  return true;
}

void CudaEvent::synchronize() {
  check(call(pool_->place(), [&] { return cudaEventSynchronize(event_); }),
        "waiting for an event on ", name_of(pool_->place()));
}

}  // namespace ds::cuda
