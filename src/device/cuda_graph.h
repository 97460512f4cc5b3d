// Recorded work as the CUDA runtime has it. Only for the sources of a CUDA build.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/cuda_device.h"
#include "device/cuda_support.h"

namespace ds::cuda {

// What `body` queues on the stream, which does not run yet. Throws what `body` throws, and
// Error(kDevice) where CUDA refuses to record a call. `memory` lives as long as the graph.
std::unique_ptr<DeviceGraph> record_graph(const Place& place, const std::string& name,
                                          cudaStream_t stream, std::shared_ptr<GraphMemory> memory,
                                          const std::function<void()>& body);

}  // namespace ds::cuda
