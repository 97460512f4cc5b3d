// Tells the address sanitizer which parts of an arena are in use; nothing in other builds.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define DS_DEVICE_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DS_DEVICE_POISONS 1
#endif
#endif
#ifdef DS_DEVICE_POISONS
#include <sanitizer/asan_interface.h>
#endif

namespace ds {

inline void poison([[maybe_unused]] const void* begin, [[maybe_unused]] int64_t bytes) noexcept {
#ifdef DS_DEVICE_POISONS
  __asan_poison_memory_region(begin, static_cast<size_t>(bytes));
#endif
}

inline void unpoison([[maybe_unused]] const void* begin, [[maybe_unused]] int64_t bytes) noexcept {
#ifdef DS_DEVICE_POISONS
  __asan_unpoison_memory_region(begin, static_cast<size_t>(bytes));
#endif
}

}  // namespace ds
