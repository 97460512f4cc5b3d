// Checksums from libraries: XXH3 for blobs, CRC32C for TensorBoard records, the CRC32 of zlib for
// Weights & Biases logs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ds {

uint64_t xxh3_64(std::span<const std::byte> bytes);
uint32_t crc32c(std::span<const std::byte> bytes);
// `before` is the checksum of what comes before the bytes.
uint32_t crc32_ieee(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace ds
