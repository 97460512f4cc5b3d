#include "base/json_reserve.h"

#include <functional>
#include <mutex>

namespace ds {
namespace {

// Room for flattening a document of some sixty thousand values. Untouched pages cost nothing.
constexpr std::size_t kReserveBytes = std::size_t{1} << 20;
constexpr std::size_t kAlignment = alignof(std::max_align_t);

// Gives out consecutive pieces and begins anew when all are back: it is used for moments only.
struct Reserve {
  std::mutex mutex;
  std::size_t used = 0;
  std::size_t pieces = 0;
};
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): for when there is no other
// memory
constinit Reserve reserve;
alignas(std::max_align_t) constinit std::byte reserve_bytes[kReserveBytes]{};
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

bool is_in_reserve(const void* pointer) {
  const std::less<const void*> before;
  return !before(pointer, reserve_bytes) && before(pointer, reserve_bytes + kReserveBytes);
}

}  // namespace

void* allocate_for_json(std::size_t bytes) {
  if (void* const pointer = ::operator new(bytes, std::nothrow)) return pointer;
  const std::lock_guard lock(reserve.mutex);
  if (bytes > kReserveBytes - reserve.used) throw std::bad_alloc();
  void* const pointer = reserve_bytes + reserve.used;
  // Rounded up, but never past the end: the reserve's size is a multiple of the alignment.
  reserve.used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  ++reserve.pieces;
  return pointer;
}

void deallocate_for_json(void* pointer) noexcept {
  if (!is_in_reserve(pointer)) {
    ::operator delete(pointer);
    return;
  }
  const std::lock_guard lock(reserve.mutex);
  if (--reserve.pieces == 0) reserve.used = 0;
}

}  // namespace ds
