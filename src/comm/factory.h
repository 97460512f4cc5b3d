// How groups of several ranks come about.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace ds {

// Ranks that are threads of this process: one communicator for each, over shared memory.
std::vector<std::shared_ptr<Communicator>> make_local_group(int size,
                                                            const CommOptions& options = {});

}  // namespace ds
