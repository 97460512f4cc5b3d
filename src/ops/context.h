// What every operator needs to run: a device for outputs and scratch, threads, and what kernels on
// a GPU may choose.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "device/device.h"
#include "kernels/cuda/gpu_stream.h"
#include "tensor/tensor.h"

namespace ds {

struct OpContext {
  std::shared_ptr<Device> device;
  ThreadPool* pool = nullptr;
  kernels::GpuPolicy gpu = {};
  // Products of linear layers may sum in the order that is fastest for their number of rows.
  // Training must not: its results are those of the same rows in more or fewer parts.
  bool any_order = false;

  // Scratch that lives as long as the returned tensor; the device caches the block.
  Tensor workspace(DType dtype, const Shape& shape) const {
    return Tensor::empty(device, dtype, shape, MemoryTag::kWorkspace);
  }
};

}  // namespace ds
