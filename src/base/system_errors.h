// Which errors come from the system, in the middle of what a call does.
#pragma once

#include "base/error.h"

namespace ds {

// Not what a check of arguments says, which comes before anything is changed.
inline bool from_system(Code code) {
  return code == Code::kIo || code == Code::kCorrupt || code == Code::kOutOfMemory;
}

}  // namespace ds
