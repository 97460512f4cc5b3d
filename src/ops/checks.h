// Argument checks that operators share; every message names the operator and the tensor.
#pragma once

#include "kernels/float_type.h"
#include "ops/op.h"

namespace ds::ops {

inline void check_on_cpu(const Op& op) {
  DS_CHECK(op.ctx.device->kind() == DeviceKind::kCpu, Code::kUnsupported, op,
           " runs on the CPU, not on ", op.ctx.device->describe());
}

// A tensor that is there, where the operator runs.
inline void check_place(const Tensor& tensor, const Op& op, const char* name) {
  DS_CHECK(op.accepts(*tensor.storage()), Code::kInvalidArgument, op, ": ", name,
           " is not in the memory of ", op.ctx.device->describe(), ", where this operator runs");
}

// Present, where the operator runs, dense.
inline void check_dense(const Tensor& tensor, const Op& op, const char* name) {
  DS_CHECK(tensor, Code::kInvalidArgument, op, ": ", name, " is missing");
  check_place(tensor, op, name);
  DS_CHECK(tensor.contiguous(), Code::kInvalidArgument, op, ": ", name, " of shape ",
           tensor.shape().text(), " must be contiguous");
}

inline void check_dense(const Tensor& tensor, const Op& op, const char* name, DType dtype) {
  check_dense(tensor, op, name);
  DS_CHECK(tensor.dtype() == dtype, Code::kInvalidArgument, op, ": ", name, " must be ",
           dtype_name(dtype), ", not ", dtype_name(tensor.dtype()));
}

inline void check_dense(const Tensor& tensor, const Op& op, const char* name, DType dtype,
                        const Shape& shape) {
  check_dense(tensor, op, name, dtype);
  DS_CHECK(tensor.shape() == shape, Code::kInvalidArgument, op, ": ", name, " must have shape ",
           shape.text(), ", not ", tensor.shape().text());
}

// Any shape of so many elements.
inline void check_elements(const Tensor& tensor, const Op& op, const char* name, DType dtype,
                           int64_t elements) {
  check_dense(tensor, op, name, dtype);
  DS_CHECK(tensor.elements() == elements, Code::kInvalidArgument, op, ": ", name, " must have ",
           elements, " elements, not shape ", tensor.shape().text());
}

inline void check_float_type(const Tensor& tensor, const Op& op, const char* name) {
  DS_CHECK(tensor, Code::kInvalidArgument, op, ": ", name, " is missing");
  DS_CHECK(tensor.dtype() == DType::kFloat32 || tensor.dtype() == DType::kBFloat16 ||
               tensor.dtype() == DType::kFloat16,
           Code::kInvalidArgument, op, ": ", name, " must be float32, bfloat16 or float16, not ",
           dtype_name(tensor.dtype()));
}

inline void check_dense_float(const Tensor& tensor, const Op& op, const char* name) {
  check_float_type(tensor, op, name);
  check_dense(tensor, op, name);
}

// Calls fn with a value of the element type of `tensor`, which check_float_type has seen.
template <class Fn>
auto with_float_type(const Tensor& tensor, const Fn& fn) {
  switch (tensor.dtype()) {
    case DType::kBFloat16:
      return fn(bfloat16{});
    case DType::kFloat16:
      return fn(float16{});
    default:
      return fn(float{});
  }
}

inline kernels::FloatType float_type(const Tensor& tensor) {
  return with_float_type(tensor, [](auto type) { return kernels::kFloatType<decltype(type)>; });
}

}  // namespace ds::ops
