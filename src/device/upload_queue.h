// Bytes of the host on their way to a GPU: through page-locked memory that is kept until they have
// arrived, so that nobody waits for them.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "device/device.h"

namespace ds {

class UploadQueue {
 public:
  // Both outlive it; `pinned` is memory that the GPU's copies reach.
  UploadQueue(Device& gpu, Device& pinned) : gpu_(gpu), pinned_(pinned) {}
  ~UploadQueue();
  UploadQueue(const UploadQueue&) = delete;
  UploadQueue& operator=(const UploadQueue&) = delete;

  // In the order of the default stream. `source` may change when the call returns, which waits only
  // where much is on its way already.
  void upload(void* target, const void* source, int64_t bytes);
  // Gives back the memory of what has arrived.
  void release_arrived() noexcept;

 private:
  struct Piece {
    void* memory = nullptr;
    int64_t bytes = 0;
    std::unique_ptr<Event> copied = {};
  };
  void send(void* target, const void* source, int64_t bytes);
  void make_room(int64_t bytes);
  void give_back(const Piece& piece) noexcept;
  void drop_arrived();

  Device& gpu_;
  Device& pinned_;
  std::mutex mutex_;
  std::deque<Piece> under_way_;  // oldest first
  int64_t bytes_ = 0;            // of them
};

}  // namespace ds
