// What a rank with a GPU needs in tests of groups over NCCL.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "device/cuda_device.h"
#include "tensor/tensor.h"

namespace ds::testing {

using Bytes = std::vector<std::byte>;

// A rank's GPU, with tensors whose bytes come from and go to the host on its default stream.
class Gpu {
 public:
  explicit Gpu(int index) : device(make_cuda_device(index)) {}
  ~Gpu() { device->default_stream().synchronize(); }

  Tensor put(DType dtype, Bytes bytes) {
    const auto count = static_cast<int64_t>(bytes.size()) / dtype_size(dtype);
    Tensor tensor = Tensor::empty(device, dtype, Shape{count}, MemoryTag::kCommunication);
    kept_.push_back(std::move(bytes));
    if (count > 0) {
      device->copy(tensor.raw(), kept_.back().data(), tensor.bytes(), device->default_stream());
    }
    return tensor;
  }
  Tensor empty(DType dtype, int64_t count) {
    return Tensor::empty(device, dtype, Shape{count}, MemoryTag::kCommunication);
  }
  Tensor floats(std::vector<float> values) {
    const auto* const from = reinterpret_cast<const std::byte*>(values.data());
    return put(DType::kFloat32, Bytes(from, from + values.size() * sizeof(float)));
  }
  Bytes get(const Tensor& tensor) {
    Bytes bytes(static_cast<size_t>(tensor.bytes()));
    device->copy(bytes.data(), tensor.raw(), tensor.bytes(), device->default_stream());
    device->default_stream().synchronize();
    return bytes;
  }
  std::vector<float> get_floats(const Tensor& tensor) {
    const Bytes bytes = get(tensor);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  const std::shared_ptr<CudaDevice> device;

 private:
  std::deque<Bytes> kept_;
};

}  // namespace ds::testing
