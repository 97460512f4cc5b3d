// Lets the rows of the operator table, and tests like them, run on a GPU: their tensors lie in
// memory that it and the host both reach.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "device/cuda_device.h"
#include "kernels/case_util.h"

namespace ds::testing {

inline void use_memory_of(const std::shared_ptr<CudaDevice>& device) {
  CaseMemory& memory = case_memory();
  memory.kind = DeviceKind::kCuda;
  memory.take = [device](size_t bytes) {
    const DeviceScope scope(*device);
    void* block = nullptr;
    return cudaMallocManaged(&block, bytes, cudaMemAttachGlobal) == cudaSuccess ? block : nullptr;
  };
  memory.give = [device](void* block) {
    device->default_stream().synchronize();
    const DeviceScope scope(*device);
    cudaFree(block);
  };
  memory.synchronize = [device] { device->default_stream().synchronize(); };
}

}  // namespace ds::testing
