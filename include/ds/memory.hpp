// ds/memory.hpp - What the process holds. Part of ds.hpp.
#ifndef DS_MEMORY_HPP
#define DS_MEMORY_HPP

#include <string>

#include "base.hpp"
#include "memory.h"

namespace libds {

// What this process holds, as JSON.
inline std::string memory_report() {
  char* json = nullptr;
  check(ds_memory_report(&json));
  return detail::take(json);
}

}  // namespace libds

#endif  // DS_MEMORY_HPP
