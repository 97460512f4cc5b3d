// One collective or message of GPU memory, from its call to its end on the GPU.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/nccl/nccl_backoff.h"
#include "comm/nccl/nccl_channel.h"
#include "comm/record.h"

namespace ds::comm {

class NcclOperation : public Work {
 public:
  // Filled by the communicator before the operation is known to others.
  Record record;
  Tensor output, input;                     // kept alive until release()
  int64_t input_bytes = 0, told_bytes = 0;  // of the input, and of what the logger tells
  std::vector<int64_t> output_counts, input_counts;
  std::vector<std::shared_ptr<Device>> devices;  // whose default streams it is ordered with
  NcclLimit limit;
  Clock::time_point called;
  int peer = -1;  // of a message
  int ranks = 1;
  std::function<void()> flush;  // queues messages that were posted and not queued yet

  bool is_message() const {
    return record.kind == Collective::kSend || record.kind == Collective::kRecv;
  }

  // Any thread, as the rest: the GPU has it and will set `done`.
  void queued(std::shared_ptr<Event> done) {
    {
      const std::lock_guard lock(mutex_);
      if (state_ != State::kPosted) return;
      state_ = State::kQueued;
      event_ = std::move(done);
    }
    changed_.notify_all();
  }
  // The GPU has come that far; throws what CUDA says about a lost GPU.
  bool passed() const {
    const std::lock_guard lock(mutex_);
    return state_ == State::kOver || (state_ == State::kQueued && event_->ready());
  }
  void finish(const std::optional<Error>& error) {
    {
      const std::lock_guard lock(mutex_);
      state_ = State::kOver;
      error_ = error;
    }
    changed_.notify_all();
  }

  bool done() const override {
    post_messages();
    const std::lock_guard lock(mutex_);
    if (state_ != State::kQueued) return state_ == State::kOver;
    try {
      return event_->ready();
    } catch (const Error&) {
      return false;  // the watch sees it too, and fails the operation
    }
  }
  // Work that is queued on the default streams from now on comes after this operation. The host
  // does not wait for the GPU. Memory follows the default streams, so that the operation need not
  // hold it any more: a program that runs far ahead of its GPU uses it again.
  void wait() override {
    post_messages();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return state_ != State::kPosted; });
      if (error_) throw Error(*error_);
      for (const auto& device : devices) {
        if (state_ == State::kQueued) device->default_stream().wait(*event_);
      }
    }
    release();
  }
  // Lets go of the memory.
  void release() {
    Tensor first, second;  // end when others may have the lock
    const std::lock_guard lock(mutex_);
    std::swap(first, output);
    std::swap(second, input);
  }
  // The host waits for the GPU. Does not throw what failed.
  void wait_on_host() const {
    for (const Backoff backoff; !done();) {
      const std::chrono::microseconds pause = backoff.pause(Clock::now());
      if (pause.count() == 0) {
        Backoff::moment();
        continue;
      }
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, pause, [&] { return state_ == State::kOver; });
    }
  }
  int participants() const override { return ranks; }

 private:
  enum class State { kPosted, kQueued, kOver };
  void post_messages() const {
    if (!is_message()) return;
    {
      const std::lock_guard lock(mutex_);
      if (state_ != State::kPosted) return;
    }
    flush();
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  State state_ = State::kPosted;
  std::shared_ptr<Event> event_;
  std::optional<Error> error_;
};
using NcclOperationPtr = std::shared_ptr<NcclOperation>;

}  // namespace ds::comm
