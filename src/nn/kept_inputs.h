// Where the inputs of checkpointed segments wait from forward to backward, when that is not the
// memory that they were computed in: in the host's memory beside a GPU (activation_offload.h), or
// in stores such as files (stored_inputs.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace ds::nn {

// Of one pass. The tape keeps segments in the order of the forward pass, and fetches each once,
// newest first.
class KeptInputs {
 public:
  virtual ~KeptInputs() = default;
  // Takes what the next segment of the forward pass keeps, and returns the segment's number.
  virtual size_t keep(std::span<const Tensor> inputs) = 0;
  // The inputs again, for work on the default stream.
  virtual std::vector<Tensor> fetch(size_t segment) = 0;
};

// What a tensor was, and whether somebody still holds its memory: a tensor that several segments
// keep is kept once, and one that somebody else holds need not be brought back.
class TensorMark {
 public:
  // Smaller tensors stay where they are: beside them, moving them costs more than the memory is
  // worth.
  static constexpr int64_t kSmallest = int64_t{16} << 10;

  TensorMark() = default;
  explicit TensorMark(const Tensor& x)
      : storage_(x.storage()), offset_(offset_of(x)), dtype_(x.dtype()), shape_(x.shape()) {}

  bool is(const Tensor& x) const {
    return storage_.lock() == x.storage() && offset_ == offset_of(x) && dtype_ == x.dtype() &&
           shape_ == x.shape();
  }
  // The tensor, as long as somebody holds its memory; else none.
  Tensor find() const {
    std::shared_ptr<Storage> storage = storage_.lock();
    return storage ? Tensor(std::move(storage), offset_, dtype_, shape_) : Tensor();
  }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }

 private:
  static int64_t offset_of(const Tensor& x) {
    return static_cast<std::byte*>(x.raw()) - static_cast<std::byte*>(x.storage()->data());
  }

  std::weak_ptr<Storage> storage_;
  int64_t offset_ = 0;  // in bytes
  DType dtype_ = DType::kFloat32;
  Shape shape_;
};

}  // namespace ds::nn
