// Lets the rows of the operator table, and tests like them, run on a GPU: their tensors lie in
// memory that it and the host both reach.
#pragma once

#include <memory>

#include "cuda/managed_memory.h"
#include "kernels/case_util.h"

namespace ds::testing {

inline void use_memory_of(const std::shared_ptr<CudaDevice>& device) {
  CaseMemory& memory = case_memory();
  memory.kind = DeviceKind::kCuda;
  memory.take = [device](size_t bytes) { return take_managed(*device, bytes); };
  memory.give = [device](void* block) { give_managed(*device, block); };
  memory.synchronize = [device] { device->default_stream().synchronize(); };
}

}  // namespace ds::testing
