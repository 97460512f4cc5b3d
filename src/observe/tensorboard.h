// The bytes of TensorBoard event files: records with masked CRC32C, and the three protobuf messages
// inside, which are small enough to write by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "observe/monitor.h"

namespace ds {

uint32_t masked_crc32c(std::span<const std::byte> bytes);

// Length, its checksum, payload, its checksum.
std::string tensorboard_record(std::string_view payload);

// Payloads: the first record of every file, and scalars at a step.
std::string tensorboard_version_event(double wall_time);
std::string tensorboard_scalar_event(double wall_time, int64_t step,
                                     const std::vector<Metric>& metrics);

}  // namespace ds
