// What rank 0 does for all ranks of a run.
#pragma once

#include <functional>

#include "ds.hpp"

namespace tool {

// Collective: rank 0 runs `body`, the others wait for it. When it fails, rank 0 throws its failure
// and the others one that points to rank 0, so that no rank waits for one that is gone.
void on_first_rank(libds::Comm& comm, const std::function<void()>& body);

}  // namespace tool
