// Tensors over memory that somebody else owns: checks of address, shape and strides, and a lease
// whose release runs only once the taking has succeeded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "tensor/tensor.h"

namespace ds {

// Runs a release function exactly once when it is destroyed, if it was armed before. Until then the
// memory's owner keeps it: a failure on the way to a finished tensor must not release anything.
class Lease {
 public:
  explicit Lease(std::function<void()> release) : release_(std::move(release)) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  void arm() noexcept { armed_ = true; }

 private:
  std::function<void()> release_;
  bool armed_ = false;
};

struct LentTensor {
  Tensor tensor;
  std::shared_ptr<Lease> lease;  // arm it when the tensor has been handed over
};

// Where memory is.
struct MemoryPlace {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
};

// Memory as a tensor; of a GPU, when it was accepted (device/cuda_lent.h). `strides` are in
// elements, >= 0; an empty span means packed row-major. Those of dimensions with at most one
// element say nothing and are replaced by packed ones. Throws kInvalidArgument for null or
// misaligned data, negative sizes or strides, and extents that overflow or wrap around the address
// space.
LentTensor lend_memory(const MemoryPlace& place, void* data, DType dtype, const Shape& shape,
                       std::span<const int64_t> strides, bool read_only,
                       std::function<void()> release);

// Copies between a tensor of any strides, wherever it lies, and packed row-major memory of the host
// with the same element type. Waits for what a GPU does.
void copy_to_packed(const Tensor& tensor, void* packed);
void copy_from_packed(const Tensor& tensor, const void* packed);

}  // namespace ds
