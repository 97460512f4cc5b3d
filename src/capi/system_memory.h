// The machine's memory and this process's, as JSON.
#pragma once

#include "base/json.h"

namespace ds::capi {

// {"total_bytes", "available_bytes", "limit_bytes" (of the container, when there is one),
// "page_bytes"}
Json system_memory();
// {"resident_bytes", "peak_resident_bytes"}; -1 where the system does not say.
Json process_memory();

}  // namespace ds::capi
