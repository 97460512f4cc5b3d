// A group of ranks that are not there: collectives end at once and move nothing. For plans, whose
// tensors hold nothing either.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace ds {

// Seen from its first rank.
std::shared_ptr<Communicator> make_pretended_group(int ranks);

}  // namespace ds
