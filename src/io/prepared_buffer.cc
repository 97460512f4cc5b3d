#include "io/prepared_buffer.h"

#include <algorithm>
#include <new>
#include <system_error>

namespace ds::io {
namespace {

// Asked for at once: a huge page.
constexpr int64_t kPart = int64_t{2} << 20;

int64_t parts_of(int64_t bytes) { return (bytes + kPart - 1) / kPart; }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// By touching them: a system call for all of them would hold up whoever maps memory meanwhile.
void ask_for(std::span<std::byte> pages) noexcept {
  for (size_t at = 0; at < pages.size(); at += static_cast<size_t>(kAlignment)) {
    *static_cast<volatile std::byte*>(pages.data() + at) = std::byte{0};
  }
}

}  // namespace

PreparedBuffer::PreparedBuffer(int64_t bytes, int threads)
    : buffer_(bytes), ready_(static_cast<size_t>(parts_of(bytes))), wanted_(parts_of(bytes)) {
  try {
    for (int i = 0; i < threads && wanted_ > 0; ++i) threads_.emplace_back([this] { ask(); });
  } catch (const std::system_error&) {  // fewer will do
  } catch (const std::bad_alloc&) {
  }
  if (threads_.empty()) first_open_ = next_ = wanted_;  // pages come when they are used
}

PreparedBuffer::~PreparedBuffer() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PreparedBuffer::ask() noexcept {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (next_ >= wanted_) {
      changed_.wait(lock);
      continue;
    }
    const int64_t part = next_++, begin = part * kPart;
    if (asking_++ == 0) began_ = std::chrono::steady_clock::now();
    lock.unlock();
    ask_for(bytes().subspan(static_cast<size_t>(begin),
                            static_cast<size_t>(std::min(kPart, buffer_.size() - begin))));
    lock.lock();
    if (--asking_ == 0) seconds_ += seconds_since(began_);
    ready_[static_cast<size_t>(part)] = 1;
    const int64_t before = first_open_, end = static_cast<int64_t>(ready_.size());
    while (first_open_ < end && ready_[static_cast<size_t>(first_open_)] != 0) ++first_open_;
    if (first_open_ > before) changed_.notify_all();
  }
}

int64_t PreparedBuffer::ready() const noexcept {
  const std::lock_guard lock(mutex_);
  return std::min(first_open_ * kPart, buffer_.size());
}

void PreparedBuffer::wait_for(int64_t bytes) noexcept {
  const int64_t parts = parts_of(std::min(bytes, buffer_.size()));
  std::unique_lock lock(mutex_);
  if (first_open_ >= parts) return;
  wanted_ = std::max(wanted_, parts);
  changed_.notify_all();
  changed_.wait(lock, [&] { return first_open_ >= parts; });
}

void PreparedBuffer::limit(int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  wanted_ = parts_of(std::min(bytes, buffer_.size()));
  changed_.notify_all();
}

double PreparedBuffer::rate() const noexcept {
  const std::lock_guard lock(mutex_);
  const double seconds = seconds_ + (asking_ > 0 ? seconds_since(began_) : 0);
  return seconds > 0 ? static_cast<double>(first_open_ * kPart) / seconds : 0;
}

}  // namespace ds::io
