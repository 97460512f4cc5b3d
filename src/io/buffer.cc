#include "io/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/error.h"

namespace ds::io {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Buffer::Buffer(int64_t bytes, MemoryAccount* account) {
  if (bytes <= 0) return;
  const bool large = bytes >= kHugePage;
  size_ = round_up(bytes, kAlignment);
  // More than is needed, so that a huge page can begin inside; what is left over goes back.
  const int64_t mapped = large ? round_up(size_, kHugePage) + kHugePage : size_;
  void* const map = ::mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  DS_CHECK(map != MAP_FAILED, Code::kOutOfMemory, "no memory for an I/O buffer of ", bytes,
           " bytes");
  auto* const base = static_cast<std::byte*>(map);
  data_ = base;
  if (large) {
    const auto address = reinterpret_cast<uintptr_t>(base);
    const auto unit = static_cast<uintptr_t>(kHugePage);
    const size_t front = static_cast<size_t>((unit - address % unit) % unit);
    data_ = base + front;
    const size_t back = static_cast<size_t>(mapped) - front - static_cast<size_t>(size_);
    if (front > 0) ::munmap(base, front);
    if (back > 0) ::munmap(data_ + size_, back);
    ::madvise(data_, static_cast<size_t>(size_), MADV_HUGEPAGE);
  }
  account_ = account;
  if (account_ != nullptr) account_->add(MemoryTag::kIo, size_);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  ::munmap(data_, static_cast<size_t>(size_));
  if (account_ != nullptr) account_->remove(MemoryTag::kIo, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      account_(std::exchange(other.account_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(account_, other.account_);
  return *this;
}

Buffer BufferPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Buffer buffer = std::move(free_.back());
      free_.pop_back();
      return buffer;
    }
  }
  return Buffer(buffer_bytes_, account_);
}

void BufferPool::give(Buffer buffer) noexcept {
  if (!buffer || buffer.size() < buffer_bytes_) return;
  const std::lock_guard lock(mutex_);
  try {
    free_.push_back(std::move(buffer));
  } catch (const std::bad_alloc&) {
    // Then it is freed instead of kept.
  }
}

void stream_copy(std::byte* target, const std::byte* source, size_t bytes) noexcept {
#if defined(__SSE2__)
  // 64 bytes fill one line; below a page the caches serve better.
  constexpr size_t kLine = 64;
  if (bytes >= static_cast<size_t>(kAlignment)) {
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
    std::memcpy(target, source, head);
    target += head;
    source += head;
    bytes -= head;
    for (; bytes >= kLine; bytes -= kLine, target += kLine, source += kLine) {
      const auto* from = reinterpret_cast<const __m128i*>(source);
      auto* to = reinterpret_cast<__m128i*>(target);
      const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
      const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
      _mm_stream_si128(to, a);
      _mm_stream_si128(to + 1, b);
      _mm_stream_si128(to + 2, c);
      _mm_stream_si128(to + 3, d);
    }
    _mm_sfence();  // whoever hears that the copy is done shall also see it
  }
#endif
  if (bytes > 0) std::memcpy(target, source, bytes);
}

}  // namespace ds::io
