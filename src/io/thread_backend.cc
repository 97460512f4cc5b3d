// The fallback: threads that read and write with ordinary calls, through the page cache or not.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io/backend.h"

namespace ds::io {
namespace {

class ThreadBackend : public Backend {
 public:
  explicit ThreadBackend(int threads) : most_threads_(static_cast<size_t>(threads)) {}

  ~ThreadBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int submit(const Piece& piece, uint32_t slot) override {
    if (threads_.size() < most_threads_) {
      try {
        threads_.emplace_back([this] { serve(); });
      } catch (const std::system_error&) {
        if (threads_.empty()) return EAGAIN;
      }
    }
    {
      const std::lock_guard lock(mutex_);
      waiting_.emplace_back(piece, slot);
    }
    work_.notify_one();
    return 0;
  }

  size_t reap(bool block, std::span<Completion> out) override {
    std::unique_lock lock(mutex_);
    if (block) ended_.wait(lock, [&] { return !done_.empty(); });
    size_t n = 0;
    for (; n < out.size() && !done_.empty(); ++n) {
      out[n] = done_.front();
      done_.pop_front();
    }
    return n;
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto [piece, slot] = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      ssize_t n;
      do {
        n = piece.write ? ::pwrite(piece.fd, piece.data, piece.bytes, piece.offset)
                        : ::pread(piece.fd, piece.data, piece.bytes, piece.offset);
      } while (n < 0 && errno == EINTR);
      const int64_t result = n < 0 ? -errno : n;
      lock.lock();
      done_.push_back({slot, result});
      ended_.notify_one();
    }
  }

  const size_t most_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::deque<std::pair<Piece, uint32_t>> waiting_;
  std::deque<Completion> done_;
  bool stop_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_thread_backend(int threads) {
  return std::make_unique<ThreadBackend>(threads);
}

}  // namespace ds::io
