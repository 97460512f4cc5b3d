#include "tensor/store_room.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <numeric>

namespace ds {
namespace {

// Places begin where a device wants them to.
constexpr int64_t kPage = 4096;

int64_t whole_pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

StoreRoom::Place StoreRoom::take(int64_t bytes) {
  const int64_t wanted = std::max(kPage, whole_pages(bytes));
  for (size_t i = 0;; ++i) {
    if (i == stores_.size()) {
      const int64_t size = std::max(wanted, whole_pages(least_bytes_));
      Store store{make_(size), {}};
      store.free[0] = size;
      stores_.push_back(std::move(store));
    }
    std::map<int64_t, int64_t>& free = stores_[i].free;
    const auto found =
        std::ranges::find_if(free, [&](const auto& range) { return range.second >= wanted; });
    if (found == free.end()) continue;
    const auto [begin, length] = *found;
    if (length > wanted) free[begin + wanted] = length - wanted;
    free.erase(begin);
    return {i, begin, bytes};
  }
}

// Where there is no memory to note that it is free, the place is lost, as long as the store lives.
void StoreRoom::give(const Place& place) noexcept try {
  std::map<int64_t, int64_t>& free = stores_[place.store].free;
  int64_t begin = place.begin, length = std::max(kPage, whole_pages(place.bytes));
  const auto after = free.find(begin + length);
  if (after != free.end()) {
    length += after->second;
    free.erase(after);
  }
  const auto next = free.lower_bound(begin);
  if (next != free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += length;
      return;
    }
  }
  free[begin] = length;
} catch (const std::bad_alloc&) {
}

void StoreRoom::flush() const {
  std::exception_ptr first;
  for (const Store& store : stores_) {
    try {
      store.array.flush();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

int64_t StoreRoom::bytes() const {
  return std::accumulate(stores_.begin(), stores_.end(), int64_t{0},
                         [](int64_t sum, const Store& s) { return sum + s.array.elements(); });
}

int64_t StoreRoom::free_bytes() const {
  int64_t sum = 0;
  for (const Store& store : stores_) {
    for (const auto& [begin, length] : store.free) sum += length;
  }
  return sum;
}

}  // namespace ds
