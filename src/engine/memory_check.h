// Memory that is planned before an engine allocates any, and refused where it cannot be had.
#pragma once

#include "engine/run_context.h"

namespace ds {

// Collective. As memory_plan of the configuration says: throws kOutOfMemory, with a table by use
// and what would help, or warns. Afterwards the device knows what was planned, for its errors.
void check_memory(RunContext& run);

}  // namespace ds
