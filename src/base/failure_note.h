// When this process met a failure, told at once to the launcher that asks for it: by the time when
// ranks have ended, nobody can say any more whose failure was the cause of the others'.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace ds {

// One message on the socket (AF_UNIX, SOCK_SEQPACKET) whose number DS_FAILURE_FD gives, as
// `ds launch` does. The layout is a part of that interface (docs/cli.md).
struct FailureNote {
  int64_t nanoseconds;  // CLOCK_MONOTONIC
  int32_t code;         // a ds_status
  int32_t unused;
};

// Sends one now, where somebody asks; never waits. Any thread.
void note_failure(Code code) noexcept;

}  // namespace ds
