// A device and tensors on it, for tests that do the same on the CPU and on a GPU.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda_device.h"
#include "ops/context.h"
#include "tensor/transfer.h"

namespace ds::testing {

struct Side {
  explicit Side(std::shared_ptr<Device> where) : device(std::move(where)), ctx{device, &pool} {}

  template <class T>
  Tensor tensor(DType dtype, const std::vector<T>& from) const {
    Tensor out =
        Tensor::empty(device, dtype, {static_cast<int64_t>(from.size())}, MemoryTag::kOther);
    device->copy(out.raw(), from.data(), out.bytes(), device->default_stream());
    device->default_stream().synchronize();
    return out;
  }
  template <class T>
  std::vector<T> host(const Tensor& from) const {
    std::vector<T> out(static_cast<size_t>(from.elements()));
    copy_to_host(from, out.data());
    return out;
  }

  ThreadPool pool{1};
  std::shared_ptr<Device> device;
  OpContext ctx;
};

}  // namespace ds::testing
