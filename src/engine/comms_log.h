// The log of collectives that comms_logger asks for.
#pragma once

#include <memory>

#include "comm/logger.h"
#include "config/config.h"

namespace ds {

// Null where nobody asks; throws for a name that is no collective.
std::shared_ptr<CommsLogger> make_comms_logger(const CommsLoggerConfig& config);

}  // namespace ds
