#include "device/counting_device.h"

#include <algorithm>

namespace ds {
namespace {

// Larger pieces would make pages of what need not be there.
constexpr int64_t kSmall = 4096;

}  // namespace

void* CountingDevice::allocate_in(Arena& arena, int64_t bytes, MemoryTag tag) {
  if (bytes == 0) return nullptr;
  check_request(bytes, tag);
  void* const pointer = arena.allocate(bytes);
  if (pointer == nullptr) fail_out_of_memory(*this, "the address space", bytes, tag, 0);
  account_.add(tag, Arena::rounded(bytes));
  if (account_.total_now() > most_) {
    most_ = account_.total_now();
    for (size_t i = 0; i < fullest_.size(); ++i) {
      fullest_[i] = account_.now(static_cast<MemoryTag>(i));
    }
  }
  return pointer;
}

void* CountingDevice::allocate(int64_t bytes, MemoryTag tag) {
  return allocate_in(arena_, bytes, tag);
}

void CountingDevice::deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept {
  if (pointer == nullptr) return;
  account_.remove(tag, Arena::rounded(bytes));
  arena_.deallocate(pointer, bytes);
}

void* CountingDevice::OwnPages::allocate(int64_t bytes, MemoryTag tag) {
  void* const pointer = all.allocate_in(arena, bytes, tag);
  now += Arena::rounded(bytes);
  most = std::max(most, now);
  return pointer;
}

void CountingDevice::OwnPages::deallocate(void* pointer, int64_t bytes, MemoryTag tag) noexcept {
  if (pointer == nullptr) return;
  all.account_.remove(tag, Arena::rounded(bytes));
  arena.deallocate(pointer, bytes);
  now -= Arena::rounded(bytes);
}

void CountingDevice::copy(void* target, const void* source, int64_t bytes, Stream& stream) {
  if (bytes <= kSmall) HostDevice::copy(target, source, bytes, stream);
}

void CountingDevice::clear(void* target, int64_t bytes, Stream& stream) {
  if (bytes <= kSmall) HostDevice::clear(target, bytes, stream);
}

}  // namespace ds
