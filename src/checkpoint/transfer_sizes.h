// Sizes that what writes blobs and what reads them agree on.
#pragma once

#include <cstdint>

namespace ds {

// Buffers of blocks on their way to a file or from it, all together.
inline constexpr uint64_t kRingBytes = uint64_t{64} << 20;
// Of less a checksum is not worth a second thread.
inline constexpr uint64_t kSharedBytes = uint64_t{1} << 20;
// Less is not worth a transfer of its own between the file and its place in memory.
inline constexpr uint64_t kLeastDirect = uint64_t{256} << 10;

}  // namespace ds
