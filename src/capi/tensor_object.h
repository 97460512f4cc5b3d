// What stands behind a ds_tensor, and how other handles take tensors in and give them out.
#pragma once

#include "capi/handles.h"
#include "tensor/tensor.h"

namespace ds::capi {

class TensorObject : public HandleObject {
 public:
  explicit TensorObject(Tensor value) : tensor(std::move(value)) {}
  const Tensor tensor;
};

template <>
struct HandleTraits<ds_tensor> {
  using Object = TensorObject;
  static constexpr HandleKind kind = HandleKind::kTensor;
};

// A handle for a result.
ds_tensor* publish_tensor(Tensor tensor);

// The shape that `ndim` and `shape` arguments describe.
Shape shape_param(const int64_t* shape, int32_t ndim);
DType dtype_param(int32_t dtype, const char* parameter);

}  // namespace ds::capi
