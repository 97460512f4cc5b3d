// Tensors of ds.h: creation, wrapping, DLPack, questions, reading and writing.
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "capi/args.h"
#include "capi/fence.h"
#include "capi/scalar.h"
#include "capi/tensor_object.h"
#include "tensor/dlpack.h"
#include "tensor/lent_memory.h"
#include "tensor/transfer.h"

namespace ds::capi {

static_assert(static_cast<int32_t>(DType::kFloat32) == DS_FLOAT32);
static_assert(static_cast<int32_t>(DType::kFloat64) == DS_FLOAT64);
static_assert(static_cast<int32_t>(DType::kFloat16) == DS_FLOAT16);
static_assert(static_cast<int32_t>(DType::kBFloat16) == DS_BFLOAT16);
static_assert(static_cast<int32_t>(DType::kInt8) == DS_INT8);
static_assert(static_cast<int32_t>(DType::kInt16) == DS_INT16);
static_assert(static_cast<int32_t>(DType::kInt32) == DS_INT32);
static_assert(static_cast<int32_t>(DType::kInt64) == DS_INT64);
static_assert(static_cast<int32_t>(DType::kUInt8) == DS_UINT8);
static_assert(static_cast<int32_t>(DType::kUInt16) == DS_UINT16);
static_assert(static_cast<int32_t>(DType::kUInt32) == DS_UINT32);
static_assert(static_cast<int32_t>(DType::kUInt64) == DS_UINT64);
static_assert(static_cast<int32_t>(DType::kBool) == DS_BOOL);
static_assert(static_cast<int32_t>(DeviceKind::kCpu) == DS_DEVICE_CPU);
static_assert(static_cast<int32_t>(DeviceKind::kCuda) == DS_DEVICE_CUDA);

ds_tensor* publish_tensor(Tensor tensor) {
  return publish<ds_tensor>(std::make_shared<TensorObject>(std::move(tensor)));
}

const Tensor& host_tensor(const TensorObject& object, const char* name) {
  DS_CHECK(on_host(object.tensor), Code::kUnsupported, name,
           " must lie in host memory; it lies on cuda:", object.tensor.storage()->device_index());
  return object.tensor;
}

Tensor host_copy(const TensorObject& object) {
  const Tensor& tensor = object.tensor;
  if (on_host(tensor)) return tensor;
  CpuDeviceOptions options;
  options.cache = false;
  Tensor copy =
      Tensor::empty(make_cpu_device(options), tensor.dtype(), tensor.shape(), MemoryTag::kOther);
  copy_to_packed(tensor, copy.raw());
  return copy;
}

ReservedTensor::ReservedTensor()
    : object_(std::make_shared<TensorObject>(Tensor())), handle_(publish<ds_tensor>(object_)) {}

ReservedTensor::~ReservedTensor() { end_handle(handle_); }

ds_tensor* ReservedTensor::give(Tensor tensor) noexcept {
  object_->tensor = std::move(tensor);
  return std::exchange(handle_, nullptr);
}

Shape shape_param(const int64_t* shape, int32_t ndim) {
  DS_CHECK(ndim >= 0 && ndim <= kMaxDims, Code::kInvalidArgument, "ndim is ", ndim, "; 0 to ",
           kMaxDims, " are supported");
  DS_CHECK(shape != nullptr || ndim == 0, Code::kInvalidArgument, "shape is NULL");
  return Shape(std::span<const int64_t>(shape, static_cast<size_t>(ndim)));
}

DType dtype_param(int32_t dtype, const char* parameter) {
  DS_CHECK(is_dtype(dtype), Code::kInvalidArgument, parameter, " is ", dtype,
           ", which is no ds_dtype");
  return static_cast<DType>(dtype);
}

namespace {

// Gives out a tensor over lent memory. Only once its handle exists is the lease armed: until then a
// failure leaves the memory with the caller, unreleased.
void publish_lent(const LentTensor& lent, ds_tensor*& out) {
  ds_tensor* const handle = publish_tensor(lent.tensor);
  lent.lease->arm();
  out = handle;
}

ds_tensor_info describe(const Tensor& tensor) {
  static_assert(kMaxDims == DS_MAX_DIMS);
  ds_tensor_info info{};
  info.data = tensor.elements() > 0 ? tensor.raw() : nullptr;
  info.elements = tensor.elements();
  info.bytes = tensor.bytes();
  for (int i = 0; i < tensor.dims(); ++i) {
    info.shape[i] = tensor.size(i);
    info.strides[i] = tensor.stride(i);
  }
  info.ndim = tensor.dims();
  info.dtype = static_cast<ds_dtype>(tensor.dtype());
  info.device_kind = static_cast<ds_device_kind>(tensor.storage()->device_kind());
  info.device_index = tensor.storage()->device_index();
  info.read_only = tensor.storage()->read_only() ? 1 : 0;
  info.contiguous = tensor.contiguous() ? 1 : 0;
  return info;
}

void check_buffer(const Tensor& tensor, const void* buffer, int64_t size) {
  DS_CHECK(size == tensor.bytes(), Code::kInvalidArgument, "size is ", size, "; the tensor ",
           dtype_name(tensor.dtype()), " ", tensor.shape().text(), " has ", tensor.bytes(),
           " bytes");
  DS_CHECK(buffer != nullptr || size == 0, Code::kInvalidArgument, "buffer is NULL");
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_tensor_create(ds_dtype dtype, const int64_t* shape, int32_t ndim,
                           ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const DType type = dtype_param(dtype, "dtype");
    CpuDeviceOptions options;
    options.cache = false;
    out = publish_tensor(
        Tensor::zeros(make_cpu_device(options), type, shape_param(shape, ndim), MemoryTag::kOther));
  });
}

ds_status ds_tensor_from_buffer(void* data, ds_dtype dtype, const int64_t* shape,
                                const int64_t* strides, int32_t ndim, ds_release_fn release,
                                void* user_data, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const DType type = dtype_param(dtype, "dtype");
    const Shape sizes = shape_param(shape, ndim);
    std::span<const int64_t> steps;
    if (strides != nullptr) steps = {strides, static_cast<size_t>(ndim)};
    for (size_t i = 0; i < steps.size(); ++i) {
      DS_CHECK(steps[i] >= 0, Code::kInvalidArgument, "stride ", i, " is negative: ", steps[i]);
    }
    publish_lent(lend_memory({}, data, type, sizes, steps, /*read_only=*/false,
                             [release, user_data] {
                               if (release != nullptr) release(user_data);
                             }),
                 out);
  });
}

ds_status ds_tensor_from_dlpack(struct DLManagedTensorVersioned* managed, void* stream,
                                ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    publish_lent(import_dlpack(managed, stream), out);
  });
}

ds_status ds_tensor_from_dlpack_legacy(struct DLManagedTensor* managed, void* stream,
                                       ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    publish_lent(import_dlpack(managed, stream), out);
  });
}

ds_status ds_tensor_to_dlpack(const ds_tensor* tensor, void* stream,
                              struct DLManagedTensorVersioned** out_managed) {
  return guard(__func__, [&] {
    const auto object = enter(tensor, "tensor", Entry::kShared);
    DLManagedTensorVersioned*& out = out_param(out_managed, "out_managed");
    out = export_dlpack(object->tensor, stream);
  });
}

ds_status ds_tensor_to_dlpack_legacy(const ds_tensor* tensor, void* stream,
                                     struct DLManagedTensor** out_managed) {
  return guard(__func__, [&] {
    const auto object = enter(tensor, "tensor", Entry::kShared);
    DLManagedTensor*& out = out_param(out_managed, "out_managed");
    out = export_dlpack_legacy(object->tensor, stream);
  });
}

ds_status ds_tensor_describe(const ds_tensor* tensor, ds_tensor_info* out_info) {
  return guard(__func__, [&] {
    const auto object = look_up(tensor, "tensor");
    give_struct(describe(object->tensor), out_info, "out_info");
  });
}

ds_status ds_tensor_read(const ds_tensor* tensor, void* buffer, int64_t size) {
  return guard(__func__, [&] {
    const auto object = enter(tensor, "tensor", Entry::kShared);
    check_buffer(object->tensor, buffer, size);
    copy_to_packed(object->tensor, buffer);
  });
}

ds_status ds_tensor_write(ds_tensor* tensor, const void* buffer, int64_t size) {
  return guard(__func__, [&] {
    const auto object = enter(tensor, "tensor");
    check_buffer(object->tensor, buffer, size);
    DS_CHECK(!object->tensor.storage()->read_only(), Code::kState,
             "the tensor is read-only: its owner lent it that way");
    copy_from_packed(object->tensor, buffer);
  });
}

ds_status ds_tensor_item(const ds_tensor* tensor, double* out_value) {
  return guard(__func__, [&] {
    const auto object = enter(tensor, "tensor", Entry::kShared);
    double& out = out_param(out_value, "out_value");
    const Tensor& t = object->tensor;
    DS_CHECK(t.elements() == 1, Code::kInvalidArgument, "the tensor of shape ", t.shape().text(),
             " has ", t.elements(), " elements; exactly 1 is needed");
    std::array<std::byte, 8> value{};  // of the largest type
    copy_to_packed(t, value.data());
    out = scalar_value(value.data(), t.dtype());
  });
}

void ds_tensor_destroy(ds_tensor* tensor) { end_handle(tensor); }
