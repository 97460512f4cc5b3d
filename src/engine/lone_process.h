// The group of an engine that was given none.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace ds {

// Of this process alone, with a warning where a launcher started it as one of several.
std::shared_ptr<Communicator> make_lone_communicator();

}  // namespace ds
