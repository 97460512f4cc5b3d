// The monitors that a configuration asks for; the first process writes, the others do not.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "config/config.h"
#include "observe/monitor.h"

namespace ds {

std::unique_ptr<MonitorSet> make_monitors(const Config& config, const Communicator& comm);

}  // namespace ds
