#include "comm/executor.h"

#include <system_error>

namespace ds::comm {

void Executor::submit(OperationPtr operation) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
      fail(Code::kOutOfMemory, "no thread for asynchronous communication: ", error.what());
    }
  }
  queue_.push_back(std::move(operation));
  changed_.notify_all();
}

void Executor::run(OperationPtr operation) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_ && queue_.empty(); });
    busy_ = true;
  }
  execute_(std::move(operation));
  const std::lock_guard lock(mutex_);
  busy_ = false;
  changed_.notify_all();
}

OperationPtr Executor::take_message() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || !queue_.front()->is_message()) return nullptr;
  OperationPtr next = std::move(queue_.front());
  queue_.pop_front();
  return next;
}

std::deque<OperationPtr> Executor::stop() {
  std::deque<OperationPtr> left;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    left.swap(queue_);
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  return left;
}

void Executor::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (!busy_ && !queue_.empty()); });
    if (stopping_) return;
    OperationPtr next = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    execute_(std::move(next));
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace ds::comm
