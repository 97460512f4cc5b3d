// The monitors that a configuration asks for; the first process writes, the others do not.
#pragma once

#include <memory>

#include "config/config.h"
#include "mesh/mesh.h"
#include "observe/monitor.h"

namespace ds {

std::unique_ptr<MonitorSet> make_monitors(const Config& config, const Mesh& mesh);

}  // namespace ds
