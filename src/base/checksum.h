// Checksums from libraries: XXH3 for blobs, CRC32C for TensorBoard records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ds {

uint64_t xxh3_64(std::span<const std::byte> bytes);
uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace ds
