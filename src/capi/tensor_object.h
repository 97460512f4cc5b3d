// What stands behind a ds_tensor, and how other handles take tensors in and give them out.
#pragma once

#include "capi/handles.h"
#include "tensor/tensor.h"

namespace ds::capi {

class TensorObject : public HandleObject {
 public:
  explicit TensorObject(Tensor value) : tensor(std::move(value)) {}
  Tensor tensor;  // does not change once the handle is known to the caller
};

template <>
struct HandleTraits<ds_tensor> {
  using Object = TensorObject;
  static constexpr HandleKind kind = HandleKind::kTensor;
};

// A handle for a result.
ds_tensor* publish_tensor(Tensor tensor);

// The tensor, for what works on host memory only; kUnsupported names the parameter.
const Tensor& host_tensor(const TensorObject& object, const char* name);
// The tensor where it lies in host memory, else a packed copy there.
Tensor host_copy(const TensorObject& object);

// A handle made before its tensor, for operations that must not fail once they have succeeded: the
// handle ends again unless it is given.
class ReservedTensor {
 public:
  ReservedTensor();
  ~ReservedTensor();
  ReservedTensor(const ReservedTensor&) = delete;
  ReservedTensor& operator=(const ReservedTensor&) = delete;
  ds_tensor* give(Tensor tensor) noexcept;

 private:
  std::shared_ptr<TensorObject> object_;
  ds_tensor* handle_;
};

// The shape that `ndim` and `shape` arguments describe.
Shape shape_param(const int64_t* shape, int32_t ndim);
DType dtype_param(int32_t dtype, const char* parameter);

}  // namespace ds::capi
