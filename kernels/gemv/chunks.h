// How much of w a thread takes at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ds::kernels {

// Bytes of a chunk where w has `all`: four chunks for each thread, so that the others take over
// from one that is held up, but none shorter than `least`. Long chunks stream: the loops fetch the
// rows that follow, and behind a chunk's end those are another thread's, while the first rows of
// the own next chunk come unfetched.
inline int64_t gemv_chunk_bytes(int64_t all, int threads, int64_t least) {
  constexpr int64_t kPerThread = 4, kMost = 1 << 20;
  return std::clamp(all / (kPerThread * threads), least, kMost);
}

}  // namespace ds::kernels
