// A clock that a test moves.
#pragma once

#include "observe/timers.h"

namespace ds {

struct FakeClock {
  double now = 100;  // seconds
  ClockFn fn() {
    return [this] { return now; };
  }
};

}  // namespace ds
