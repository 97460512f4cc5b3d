// What operators on tensors of ds.h have in common: threads, the host's memory, and checks of what
// a caller gives them.
#pragma once

#include <optional>

#include "base/thread_pool.h"
#include "capi/handles.h"
#include "capi/tensor_object.h"
#include "ops/context.h"

namespace ds::capi {

// The threads and the device of a call, whose results lie in the host's memory.
class HostCall {
 public:
  HostCall() : ctx_{make_cpu_device({.cache = false}), &pool_} {}
  const OpContext& ctx() const { return ctx_; }
  Tensor empty(DType dtype, const Shape& shape) const {
    return Tensor::empty(ctx_.device, dtype, shape, MemoryTag::kOther);
  }

 private:
  ThreadPool pool_;
  OpContext ctx_;
};

// The packed tensor in host memory; kUnsupported and kInvalidArgument name the parameter.
inline const Tensor& packed_tensor(const TensorObject& object, const char* name) {
  const Tensor& tensor = host_tensor(object, name);
  DS_CHECK(tensor.contiguous(), Code::kInvalidArgument, name, " must be packed row-major");
  return tensor;
}

inline const Tensor& float_tensor(const TensorObject& object, const char* name) {
  const Tensor& tensor = packed_tensor(object, name);
  const DType type = tensor.dtype();
  DS_CHECK(type == DType::kFloat32 || type == DType::kBFloat16 || type == DType::kFloat16,
           Code::kUnsupported, name, " is ", dtype_name(type),
           "; float32, bfloat16 or float16 is needed");
  return tensor;
}

inline const Tensor& typed_tensor(const TensorObject& object, const char* name, DType type) {
  const Tensor& tensor = packed_tensor(object, name);
  DS_CHECK(tensor.dtype() == type, Code::kUnsupported, name, " is ", dtype_name(tensor.dtype()),
           "; ", dtype_name(type), " is needed");
  return tensor;
}

// An optional tensor, packed in host memory, entered for the length of a call.
class MaybeTensor {
 public:
  MaybeTensor(const ds_tensor* handle, const char* name) {
    if (handle == nullptr) return;
    entered_.emplace(look_up(handle, name), Entry::kShared, name);
    tensor_ = packed_tensor(**entered_, name);
  }
  const Tensor& operator*() const { return tensor_; }

 private:
  std::optional<Entered<TensorObject>> entered_;
  Tensor tensor_;
};

}  // namespace ds::capi
