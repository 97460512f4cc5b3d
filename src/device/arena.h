// The CPU's memory of one engine: an address range reserved once, of which a growing part is
// backed by huge pages, touched when it is taken, and kept until trim() or the end.
//
// A request gets the lowest place where it fits, and neighbouring free places join. So where the
// tensors of a step lie depends on its sequence of requests alone: the second step repeats the
// first, and needs no memory that the first did not need.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace ds {

class Arena {
 public:
  static constexpr int64_t kAlignment = 64;
  static constexpr int64_t kHugePage = int64_t{2} << 20;
  // Large places begin at pages, so that files can be read straight into them.
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kLarge = int64_t{1} << 20;

  // `limit` in bytes held from the system; 0 = none. Pages that are not touched are zeros for whom
  // reads them, and there from when somebody writes them.
  enum class Pages { kTouched, kUntouched };
  explicit Arena(int64_t limit, Pages pages = Pages::kTouched);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // What a request takes.
  static int64_t rounded(int64_t bytes) noexcept {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // So many threads, the caller's among them, take new pages from the system together; threads of
  // its own start for that and end with it. At first as many as the process has CPUs.
  void use_threads(int most) noexcept { threads_.store(most); }
  // Null when the limit or the system does not allow it. `bytes` is positive.
  void* allocate(int64_t bytes);
  // `bytes` as in allocate.
  void deallocate(void* pointer, int64_t bytes) noexcept;
  // Gives back what lies beyond the last used byte of each range.
  void trim() noexcept;

  int64_t held_bytes() const noexcept { return held_.load(); }
  int64_t times_grown() const noexcept { return grown_.load(); }

 private:
  // A reserved address range; [base, base + backed) is usable.
  struct Range {
    std::byte* base = nullptr;
    int64_t reserved = 0;
    int64_t backed = 0;
  };
  struct FreePlace {
    std::byte* begin;
    int64_t size;
    size_t range;
  };

  void* take_free(int64_t size);
  bool grow(int64_t size);
  bool reserve_range(int64_t size);
  bool back(size_t range, int64_t more);
  void add_free(std::byte* begin, int64_t size, size_t range) noexcept;
  size_t range_of(const std::byte* pointer) const noexcept;
  int64_t free_tail(size_t range) const noexcept;

  const int64_t limit_;
  const Pages pages_;
  std::atomic<int> threads_;
  std::mutex mutex_;
  std::vector<Range> ranges_;
  std::vector<FreePlace> free_;  // by address; its capacity always has room for one more
  int64_t used_places_ = 0;
  std::atomic<int64_t> held_{0};
  std::atomic<int64_t> grown_{0};
};

}  // namespace ds
