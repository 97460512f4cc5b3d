#include "io/engine.h"

#include <algorithm>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "io/buffer.h"

namespace ds::io {

// A thread with a queue, which it alone uses once it runs.
class Engine::Worker {
 public:
  Worker(Engine& engine, const QueueOptions& options) : engine_(engine), queue_(options) {}

  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  // Starts the thread with the first use; Error(kOutOfMemory) where there is none.
  void need_thread() {
    if (thread_.joinable()) return;
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error& error) {
      fail(Code::kOutOfMemory, "no thread for file I/O can be started: ", error.what());
    }
  }

  BackendKind backend() const { return queue_.backend(); }

  void add(Part part) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(part));
    }
    work_.notify_one();
  }

  // Looks for requests that have been cancelled.
  void look() {
    {
      const std::lock_guard lock(mutex_);
      look_ = true;
    }
    work_.notify_one();
  }

 private:
  struct Running {
    Queue::Ticket ticket;
    Part part;
  };

  void serve() {
    for (;;) {
      bool look = false;
      {
        std::unique_lock lock(mutex_);
        work_.wait(lock, [&] { return stop_ || look_ || !waiting_.empty() || !running_.empty(); });
        if (stop_) return;
        look = std::exchange(look_, false);
        incoming_.swap(waiting_);
      }
      take_in();
      if (look) cancel();
      if (!running_.empty()) queue_.advance();
      end_finished();
    }
  }

  // Gives what came in to the queue.
  void take_in() {
    for (; !incoming_.empty(); incoming_.pop_front()) {
      Part& part = incoming_.front();
      try {
        running_.reserve(running_.size() + 1);
        const std::span<std::byte> bytes(part.data, static_cast<size_t>(part.bytes));
        const Queue::Ticket ticket = part.write ? queue_.write(*part.file, part.offset, bytes)
                                                : queue_.read(*part.file, part.offset, bytes);
        running_.push_back({ticket, std::move(part)});
      } catch (...) {
        engine_.end_part(part, std::current_exception());
      }
    }
  }

  void end_finished() {
    for (size_t i = 0; i < running_.size();) {
      if (!queue_.done(running_[i].ticket)) {
        ++i;
        continue;
      }
      std::exception_ptr error;
      try {
        queue_.wait(running_[i].ticket);
      } catch (...) {
        error = std::current_exception();
      }
      engine_.end_part(running_[i].part, std::move(error));
      running_.erase(running_.begin() + static_cast<int64_t>(i));
    }
  }

  void cancel() {
    for (const Running& one : running_) {
      if (one.part.request->cancelled) queue_.cancel(one.ticket);
    }
  }

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Part> waiting_;
  bool stop_ = false, look_ = false;
  std::deque<Part> incoming_;
  std::vector<Running> running_;
  Queue queue_;  // goes before the parts, which keep files and memory
  std::thread thread_;
};

Engine::Engine(const EngineOptions& options) : options_(options) {
  DS_CHECK(options.parallelism >= 1 && options.parallelism <= 64, Code::kInvalidArgument,
           "I/O with ", options.parallelism, " threads; 1 to 64 are possible");
  for (Workers& workers : workers_) {
    for (int i = 0; i < options.parallelism; ++i) {
      workers.push_back(std::make_unique<Worker>(*this, options.queue));
    }
  }
}

Engine::~Engine() {
  for (Workers& workers : workers_) workers.clear();
}

BackendKind Engine::backend() const { return workers_.front().front()->backend(); }

Engine::Ticket Engine::read(const File& file, int64_t offset, std::span<std::byte> out,
                            After after) {
  return start(file, false, offset, out, std::move(after));
}

Engine::Ticket Engine::write(const File& file, int64_t offset, std::span<const std::byte> bytes,
                             After after) {
  return start(file, true, offset, {const_cast<std::byte*>(bytes.data()), bytes.size()},
               std::move(after));
}

// One piece for each thread, alike but for whole pages of the file.
std::vector<Engine::Part> Engine::cut(const Part& whole) const {
  const int64_t end = whole.offset + whole.bytes;
  const int64_t share = (whole.bytes + options_.parallelism - 1) / options_.parallelism;
  std::vector<Part> parts;
  for (int64_t at = whole.offset; at < end;) {
    const int64_t page_end = (at + share + kAlignment - 1) / kAlignment * kAlignment;
    const int64_t next = std::min(end, page_end);
    parts.push_back(whole);
    parts.back().offset = at;
    parts.back().data = whole.data + (at - whole.offset);
    parts.back().bytes = next - at;
    at = next;
  }
  if (parts.empty()) parts.push_back(whole);
  return parts;
}

Engine::Ticket Engine::start(const File& file, bool write, int64_t offset,
                             std::span<std::byte> data, After after) {
  DS_CHECK(offset >= 0, Code::kInvalidArgument, "file I/O at the negative offset ", offset);
  const auto bytes = static_cast<int64_t>(data.size());
  DS_CHECK(offset <= INT64_MAX - bytes - kAlignment, Code::kInvalidArgument, "file I/O of ", bytes,
           " bytes at ", offset, ", which no file has");
  auto request = std::make_shared<Request>();
  request->after = std::move(after);
  std::vector<Part> parts = cut({request, &file, write, offset, data.data(), bytes});
  Workers& workers = workers_[write ? 1 : 0];
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < parts.size(); ++i) workers[i]->need_thread();
  const Ticket ticket = next_;
  requests_.emplace(ticket, request);
  ++next_;
  for (size_t i = 0; i < parts.size(); ++i) {
    request->parts += 1;
    try {
      workers[i]->add(parts[i]);
    } catch (...) {
      // Without memory to ask for it this piece fails, and with it the request.
      request->parts -= 1;
      if (i == 0) {
        requests_.erase(ticket);
        throw;
      }
      request->error = std::current_exception();
      break;
    }
  }
  return ticket;
}

// The last part of a request that was moved well runs what is to follow.
void Engine::end_part(Part& part, std::exception_ptr error) noexcept {
  const std::shared_ptr<Request> request = std::move(part.request);
  Finish finish;
  {
    const std::lock_guard lock(mutex_);
    if (error && (!request->error || part.offset < request->error_offset)) {
      request->error = error;
      request->error_offset = part.offset;
    }
    if (request->parts > 1) {
      request->parts -= 1;
      return;
    }
    finish.swap(request->after.finish);
    error = request->error;
  }
  if (finish && !error) {
    try {
      finish();
    } catch (...) {
      error = std::current_exception();
    }
  }
  finish = nullptr;
  {
    const std::lock_guard lock(mutex_);
    request->error = error;
    request->parts = 0;
  }
  ended_.notify_all();
}

bool Engine::done(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(ticket);
  return found == requests_.end() || ended(*found->second);
}

bool Engine::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  DS_CHECK(ticket < next_, Code::kInvalidArgument, "waiting for I/O that was never asked for");
  const auto found = requests_.find(ticket);
  if (found == requests_.end()) return false;
  const std::shared_ptr<Request> request = found->second;
  ended_.wait(lock, [&] { return ended(*request); });
  if (requests_.erase(ticket) == 0) return false;  // another thread waited for it too
  if (request->error) std::rethrow_exception(request->error);
  return true;
}

int64_t Engine::wait_all() {
  int64_t count = 0;
  std::exception_ptr first;
  std::unique_lock lock(mutex_);
  const Ticket end = next_;
  for (Ticket at = 0;;) {
    const auto found = requests_.lower_bound(at);
    if (found == requests_.end() || found->first >= end) break;
    at = found->first + 1;
    const std::shared_ptr<Request> request = found->second;
    if (request->after.alone) continue;
    ended_.wait(lock, [&] { return ended(*request); });
    if (requests_.erase(at - 1) == 0) continue;  // another thread waited for it too
    if (request->error && !first) first = request->error;
    ++count;
  }
  if (first) std::rethrow_exception(first);
  return count;
}

int64_t Engine::cancel() {
  std::vector<std::shared_ptr<Request>> open;
  std::unique_lock lock(mutex_);
  for (const auto& [ticket, request] : requests_) {
    if (ended(*request)) continue;
    request->cancelled = true;
    open.push_back(request);
  }
  for (Workers& workers : workers_) {
    for (const auto& worker : workers) {
      if (!open.empty()) worker->look();
    }
  }
  int64_t cancelled = 0;
  for (const std::shared_ptr<Request>& request : open) {
    ended_.wait(lock, [&] { return ended(*request); });
    if (!request->error) continue;
    try {
      std::rethrow_exception(request->error);
    } catch (const Error& error) {
      if (error.code() == Code::kAborted) ++cancelled;
    } catch (...) {
      // It failed for another reason.
    }
  }
  return cancelled;
}

}  // namespace ds::io
