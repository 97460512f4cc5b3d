// Memory that a GPU and the host both reach. Its calls of CUDA are in a source of its own: tests
// that see no header of CUDA compile to the same for emulated GPUs and for real ones.
#pragma once

#include <cstddef>

#include "device/cuda_device.h"

namespace ds::testing {

void* take_managed(CudaDevice& device, size_t bytes);  // null: there is none
void give_managed(CudaDevice& device, void* block);    // waits for the device's default stream

}  // namespace ds::testing
