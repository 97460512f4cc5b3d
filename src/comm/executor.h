// Runs operations one after another in the order of their calls, on a thread of its own that starts
// with the first asynchronous call, or on the caller's.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/operation.h"

namespace ds::comm {

class Executor {
 public:
  // `execute` does not throw and finishes the operation, unless more are to be taken (see
  // take_message).
  explicit Executor(std::function<void(OperationPtr)> execute) : execute_(std::move(execute)) {}
  ~Executor() { stop(); }

  void submit(OperationPtr operation);
  // Returns when the operation is done.
  void run(OperationPtr operation);
  // For execute: the next operation if it is a message, so that messages proceed side by side.
  OperationPtr take_message();
  // Waits for the operation in progress, then ends the thread. What is still queued is returned.
  std::deque<OperationPtr> stop();

 private:
  void work();

  const std::function<void(OperationPtr)> execute_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OperationPtr> queue_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ds::comm
