#include "cuda/managed_memory.h"

#include <cuda_runtime_api.h>

namespace ds::testing {

void* take_managed(CudaDevice& device, size_t bytes) {
  const DeviceScope scope(device);
  void* block = nullptr;
  return cudaMallocManaged(&block, bytes, cudaMemAttachGlobal) == cudaSuccess ? block : nullptr;
}

void give_managed(CudaDevice& device, void* block) {
  device.default_stream().synchronize();
  const DeviceScope scope(device);
  cudaFree(block);
}

}  // namespace ds::testing
