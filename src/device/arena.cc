#include "device/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>

#include "base/thread_pool.h"
#include "device/poison.h"

namespace ds {
namespace {

constexpr int64_t kSmallPage = Arena::kPage;
// Fresh pages come slowly where the system clears them, or a virtual machine has to ask its host:
// several threads get them several times as fast.
constexpr int64_t kTouchPiece = int64_t{16} << 20;
constexpr int kMostTouching = 8;

// What a place of `size` leaves free before it when it begins at `begin` or soon after.
int64_t gap_before(const std::byte* begin, int64_t size) {
  if (size < Arena::kLarge) return 0;
  const auto page = static_cast<uintptr_t>(Arena::kPage);
  return static_cast<int64_t>((page - reinterpret_cast<uintptr_t>(begin) % page) % page);
}

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t physical_memory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? pages * sysconf(_SC_PAGESIZE) : int64_t{1} << 36;
}

// Addresses without memory, aligned to huge pages; null when the address space has no room.
std::byte* reserve_addresses(int64_t bytes) {
  const auto wanted = static_cast<size_t>(bytes + Arena::kHugePage);
  void* const raw =
      ::mmap(nullptr, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<uintptr_t>(raw);
  const auto skip = static_cast<size_t>(
      (Arena::kHugePage - static_cast<int64_t>(address % Arena::kHugePage)) % Arena::kHugePage);
  if (skip > 0) ::munmap(begin, skip);
  const size_t rest = wanted - skip - static_cast<size_t>(bytes);
  if (rest > 0) ::munmap(begin + skip + bytes, rest);
  return begin + skip;
}

// Takes the pages now: faults in the middle of a step cost more than most operators.
bool touch_piece(std::byte* begin, int64_t bytes) {
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  if (::madvise(begin, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // older kernels than 5.14 do not know it
  for (int64_t at = 0; at < bytes; at += kSmallPage) {
    *const_cast<volatile std::byte*>(begin + at) = std::byte{0};
  }
  return true;
}

// The same by up to `threads` threads, which are gone afterwards. Fewer when the system refuses.
bool touch(std::byte* begin, int64_t bytes, int threads) {
  const int64_t pieces = (bytes + kTouchPiece - 1) / kTouchPiece;
  std::atomic<int64_t> next{0};
  std::atomic<bool> good{true};
  const auto work = [&] {
    for (int64_t i; good && (i = next++) < pieces;) {
      const int64_t at = i * kTouchPiece;
      if (!touch_piece(begin + at, std::min(kTouchPiece, bytes - at))) good = false;
    }
  };
  const int64_t helpers = std::min<int64_t>({threads, kMostTouching, pieces}) - 1;
  std::array<std::thread, kMostTouching> others;
  try {
    for (int64_t i = 0; i < helpers; ++i) others[static_cast<size_t>(i)] = std::thread(work);
  } catch (const std::system_error&) {
    // Those that are there do it.
  }
  work();
  for (std::thread& other : others) {
    if (other.joinable()) other.join();
  }
  return good;
}

}  // namespace

Arena::Arena(int64_t limit, Pages pages)
    : limit_(limit), pages_(pages), threads_(ThreadPool::available_cpus()) {}

Arena::~Arena() {
  for (const Range& range : ranges_) {
    unpoison(range.base, range.backed);
    ::munmap(range.base, static_cast<size_t>(range.reserved));
  }
}

void* Arena::allocate(int64_t bytes) {
  const int64_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  // Every used place may become a free one of its own.
  free_.reserve(free_.size() + static_cast<size_t>(used_places_) + 2);
  void* pointer = take_free(size);
  if (pointer == nullptr && grow(size)) pointer = take_free(size);
  if (pointer == nullptr) return nullptr;
  ++used_places_;
  unpoison(pointer, bytes);
  return pointer;
}

void Arena::deallocate(void* pointer, int64_t bytes) noexcept {
  auto* const begin = static_cast<std::byte*>(pointer);
  const int64_t size = rounded(bytes);
  poison(begin, size);
  const std::lock_guard lock(mutex_);
  add_free(begin, size, range_of(begin));
  --used_places_;
}

void* Arena::take_free(int64_t size) {
  const auto place = std::find_if(free_.begin(), free_.end(), [size](const FreePlace& p) {
    return p.size >= size + gap_before(p.begin, size);
  });
  if (place == free_.end()) return nullptr;
  const int64_t gap = gap_before(place->begin, size);
  std::byte* const begin = place->begin + gap;
  const FreePlace rest{begin + size, place->size - gap - size, place->range};
  if (gap > 0) {
    place->size = gap;
    if (rest.size > 0) free_.insert(std::next(place), rest);
  } else if (rest.size > 0) {
    *place = rest;
  } else {
    free_.erase(place);
  }
  return begin;
}

void Arena::add_free(std::byte* begin, int64_t size, size_t range) noexcept {
  const auto after = std::lower_bound(
      free_.begin(), free_.end(), begin,
      [](const FreePlace& place, const std::byte* address) { return place.begin < address; });
  const bool joins_next =
      after != free_.end() && after->range == range && begin + size == after->begin;
  const bool joins_previous = after != free_.begin() && std::prev(after)->range == range &&
                              std::prev(after)->begin + std::prev(after)->size == begin;
  if (joins_previous) {
    std::prev(after)->size += size + (joins_next ? after->size : 0);
    if (joins_next) free_.erase(after);
  } else if (joins_next) {
    after->begin = begin;
    after->size += size;
  } else {
    free_.insert(after, {begin, size, range});
  }
}

size_t Arena::range_of(const std::byte* pointer) const noexcept {
  size_t index = 0;
  while (pointer < ranges_[index].base ||
         pointer >= ranges_[index].base + ranges_[index].reserved) {
    ++index;
  }
  return index;
}

int64_t Arena::free_tail(size_t range) const noexcept {
  const std::byte* const end = ranges_[range].base + ranges_[range].backed;
  for (const FreePlace& place : free_) {
    if (place.range == range && place.begin + place.size == end) return place.size;
  }
  return 0;
}

// The newest range grows; a new one begins when its addresses are used up.
bool Arena::grow(int64_t size) {
  if (!ranges_.empty()) {
    const Range& last = ranges_.back();
    const int64_t tail = free_tail(ranges_.size() - 1);
    const int64_t missing = size + gap_before(last.base + last.backed - tail, size) - tail;
    if (missing <= last.reserved - last.backed) return back(ranges_.size() - 1, missing);
  }
  return reserve_range(size) && back(ranges_.size() - 1, size);
}

bool Arena::reserve_range(int64_t size) {
  const int64_t least = round_up(size, kHugePage);
  const int64_t most = limit_ > 0 ? round_up(limit_, kHugePage) : 2 * physical_memory();
  Range range;
  // A limit on the address space may refuse the whole.
  for (range.reserved = std::max(least, round_up(most, kHugePage));;
       range.reserved = std::max(least, round_up(range.reserved / 4, kHugePage))) {
    range.base = reserve_addresses(range.reserved);
    if (range.base != nullptr) break;
    if (range.reserved == least) return false;
  }
  ranges_.push_back(range);
  free_.reserve(free_.size() + static_cast<size_t>(used_places_) + 2);
  return true;
}

// Backs at least `more` further bytes of a range, in larger pieces while the limit has room.
bool Arena::back(size_t index, int64_t more) {
  constexpr int64_t kLargestStep = int64_t{64} << 20;
  Range& range = ranges_[index];
  const int64_t room =
      std::min(range.reserved - range.backed,
               limit_ > 0 ? (limit_ - held_.load()) / kSmallPage * kSmallPage : range.reserved);
  const int64_t least = round_up(more, kSmallPage);
  if (least > room) return false;
  const int64_t step = std::clamp(round_up(range.backed / 8, kHugePage), kHugePage, kLargestStep);
  const int64_t bytes = std::min(room, round_up(std::max(least, step), kHugePage));
  std::byte* const begin = range.base + range.backed;
  const auto length = static_cast<size_t>(bytes);
  if (::mprotect(begin, length, PROT_READ | PROT_WRITE) != 0) return false;
  // Best effort: without huge pages everything works, more slowly.
  const bool touched = pages_ == Pages::kTouched;
  static_cast<void>(::madvise(begin, length, touched ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
  if (touched && !touch(begin, bytes, threads_.load())) {
    static_cast<void>(::madvise(begin, length, MADV_DONTNEED));
    static_cast<void>(::mprotect(begin, length, PROT_NONE));
    return false;
  }
  range.backed += bytes;
  held_.fetch_add(bytes);
  grown_.fetch_add(1);
  poison(begin, bytes);
  add_free(begin, bytes, index);
  return true;
}

void Arena::trim() noexcept {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < ranges_.size(); ++i) {
    Range& range = ranges_[i];
    std::byte* const end = range.base + range.backed;
    const auto tail = std::find_if(free_.begin(), free_.end(), [&](const FreePlace& place) {
      return place.range == i && place.begin + place.size == end;
    });
    if (tail == free_.end()) continue;
    // Whole pages only.
    const int64_t used = tail->begin - range.base;
    const int64_t kept = round_up(used, kSmallPage);
    const int64_t given = range.backed - kept;
    if (given == 0) continue;
    unpoison(range.base + kept, given);
    static_cast<void>(::madvise(range.base + kept, static_cast<size_t>(given), MADV_DONTNEED));
    static_cast<void>(::mprotect(range.base + kept, static_cast<size_t>(given), PROT_NONE));
    range.backed = kept;
    held_.fetch_sub(given);
    tail->size = kept - used;
    if (tail->size == 0) free_.erase(tail);
  }
}

}  // namespace ds
