// Memory that the system keeps in place: locked, and in huge pages where it is large. A list of it,
// one for the process, says what is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds::io {

// Who ends a piece: a tensor's last user, or the caller of ds.h.
enum class PinnedFor : int8_t { kTensor, kCaller };

// Zeros, aligned to a page or, from 2 MiB up, to a huge page. Counted as I/O memory of the host.
// Throws Error(kOutOfMemory), which names the limit of locked memory where that is why. Threads:
// any, of all of these.
std::byte* allocate_pinned(int64_t bytes, PinnedFor whom = PinnedFor::kCaller);
// Takes back what allocate_pinned gave for the same; false, and nothing happens, for anything else.
bool free_pinned(const void* memory, PinnedFor whom = PinnedFor::kCaller) noexcept;
// Whether all of [memory, memory + bytes) lies within one piece of it.
bool is_pinned(const void* memory, int64_t bytes) noexcept;

}  // namespace ds::io
