// The monitors that a configuration asks for.
#pragma once

#include <memory>

#include "config/config.h"
#include "observe/monitor.h"

namespace ds {

std::unique_ptr<MonitorSet> make_monitors(const Config& config);

}  // namespace ds
