// The fallback: threads that read and write with ordinary calls, through the page cache or not.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io/backend.h"

namespace ds::io {
namespace {

class ThreadBackend : public Backend {
 public:
  ThreadBackend(int threads, int depth) : most_threads_(static_cast<size_t>(threads)) {
    // Threads that allocate nothing cannot fail.
    waiting_.reserve(static_cast<size_t>(depth));
    done_.reserve(static_cast<size_t>(depth));
  }

  ~ThreadBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  BackendKind kind() const override { return BackendKind::kThreads; }

  Submitted submit(std::span<const Piece* const> pieces) override {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!enough_threads()) return {i, EAGAIN};
      {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(*pieces[i]);
      }
      work_.notify_one();
    }
    return {pieces.size(), 0};
  }

  size_t reap(bool block, std::span<Completion> out) override {
    std::unique_lock lock(mutex_);
    if (block) ended_.wait(lock, [&] { return !done_.empty(); });
    const size_t n = std::min(out.size(), done_.size());
    std::copy_n(done_.begin(), n, out.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<int64_t>(n));
    return n;
  }

 private:
  // One more for each piece, up to the most; one serves as well where the system gives no more.
  bool enough_threads() {
    if (threads_.size() == most_threads_) return true;
    try {
      threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
      return !threads_.empty();
    }
    return true;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Piece piece = waiting_.front();
      waiting_.erase(waiting_.begin());
      lock.unlock();
      ssize_t n;
      do {
        n = piece.write ? ::pwrite(piece.fd, piece.data, piece.bytes, piece.offset)
                        : ::pread(piece.fd, piece.data, piece.bytes, piece.offset);
      } while (n < 0 && errno == EINTR);
      const int64_t result = n < 0 ? -errno : n;
      lock.lock();
      done_.push_back({piece.slot, result});
      ended_.notify_one();
    }
  }

  const size_t most_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::vector<Piece> waiting_;  // oldest first
  std::vector<Completion> done_;
  bool stop_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_thread_backend(int threads, int depth) {
  return std::make_unique<ThreadBackend>(threads, depth);
}

}  // namespace ds::io
