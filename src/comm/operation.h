// One call in flight: what was asked, and how it ended.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "comm/record.h"
#include "comm/transport.h"

namespace ds::comm {

class Operation : public Work {
 public:
  // Filled by the group before it is queued.
  Record record;
  Tensor output, input;  // kept alive until the end
  int peer = -1, tag = 0;
  std::vector<int64_t> output_counts, input_counts;
  std::function<void()> body;  // what runs for calls that are no plain collective
  std::chrono::milliseconds allowed{};
  Clock::time_point called;
  Deadline deadline;

  bool is_message() const {
    return record.kind == Collective::kSend || record.kind == Collective::kRecv;
  }

  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (error_) throw Error(*error_);  // one of its own for each waiter
  }
  int participants() const override {
    const std::lock_guard lock(mutex_);
    return participants_;
  }
  void finish(int participants, const std::optional<Error>& error) {
    output = input = Tensor();
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      participants_ = participants;
      error_ = error;
    }
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  int participants_ = 0;
  std::optional<Error> error_;
};
using OperationPtr = std::shared_ptr<Operation>;

}  // namespace ds::comm
