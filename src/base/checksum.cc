#include "base/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>

#include "base/xxh3.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ds {

uint64_t xxh3_64(std::span<const std::byte> bytes) {
  static const Xxh3Function chosen = xxh3_64_avx2();
  // Short inputs have no vectors in them.
  if (chosen != nullptr && bytes.size() > 240) return chosen(bytes.data(), bytes.size());
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  while (!bytes.empty()) {  // the library takes an int length
    const size_t n = std::min<size_t>(bytes.size(), size_t{1} << 30);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    crc = crc32_iscsi(data, static_cast<int>(n), crc);
    bytes = bytes.subspan(n);
  }
  return ~crc;
}

uint32_t crc32_ieee(std::span<const std::byte> bytes, uint32_t before) {
  return crc32_gzip_refl(before, reinterpret_cast<const unsigned char*>(bytes.data()),
                         bytes.size());
}

}  // namespace ds
