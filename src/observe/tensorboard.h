// TensorBoard's event records: framing with masked CRC32C, and the two protobuf messages that
// scalars need (tensorflow's record_writer, event.proto, summary.proto).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "observe/monitor.h"

namespace ds {

// length, masked CRC of the length, payload, masked CRC of the payload.
std::string tensorboard_record(std::string_view payload);
// The event that opens every file.
std::string tensorboard_version_event(double wall_time);
std::string tensorboard_scalar_event(double wall_time, int64_t step,
                                     std::span<const Metric> metrics);

}  // namespace ds
