#include "tensor/dlpack.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "device/cuda_device.h"
#include "device/cuda_lent.h"
#include "tensor/dlpack_abi.h"

namespace ds {
namespace {

std::string device_name(int32_t type) {
  switch (type) {
    case kDLCPU:
      return "CPU";
    case kDLCUDA:
      return "CUDA";
    case kDLCUDAHost:
      return "CUDA host (pinned)";
    case kDLOpenCL:
      return "OpenCL";
    case kDLVulkan:
      return "Vulkan";
    case kDLMetal:
      return "Metal";
    case kDLVPI:
      return "VPI";
    case kDLROCM:
      return "ROCm";
    case kDLROCMHost:
      return "ROCm host (pinned)";
    case kDLExtDev:
      return "extension";
    case kDLCUDAManaged:
      return "CUDA managed";
    case kDLOneAPI:
      return "oneAPI";
    case kDLWebGPU:
      return "WebGPU";
    case kDLHexagon:
      return "Hexagon";
    case kDLMAIA:
      return "MAIA";
    default:
      return str_cat("unknown (", type, ")");
  }
}

struct TypeRow {
  DType dtype;
  uint8_t code;
  uint8_t bits;
};
constexpr TypeRow kTypes[] = {
    {DType::kFloat32, kDLFloat, 32}, {DType::kFloat64, kDLFloat, 64},
    {DType::kFloat16, kDLFloat, 16}, {DType::kBFloat16, kDLBfloat, 16},
    {DType::kInt8, kDLInt, 8},       {DType::kInt16, kDLInt, 16},
    {DType::kInt32, kDLInt, 32},     {DType::kInt64, kDLInt, 64},
    {DType::kUInt8, kDLUInt, 8},     {DType::kUInt16, kDLUInt, 16},
    {DType::kUInt32, kDLUInt, 32},   {DType::kUInt64, kDLUInt, 64},
    {DType::kBool, kDLBool, 8},
};

DType dtype_from_dlpack(const DLDataType& type) {
  DS_CHECK(type.lanes == 1, Code::kUnsupported, "the tensor has ", type.lanes,
           " lanes per element; only 1 is supported");
  for (const TypeRow& row : kTypes) {
    if (row.code == type.code && row.bits == type.bits) return row.dtype;
  }
  fail(Code::kUnsupported, "the element type with DLPack code ", int{type.code}, " and ",
       int{type.bits},
       " bits is not supported; supported are float 16/32/64, bfloat 16, int and "
       "uint 8/16/32/64 and bool 8");
}

DLDataType dtype_to_dlpack(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return {row.code, row.bits, 1};
  }
  fail(Code::kInternal, "dtype ", static_cast<int32_t>(dtype), " has no DLPack code");
}

// Pinned memory is the host's.
MemoryPlace place_of(const DLDevice& device) {
  const auto type = static_cast<int32_t>(device.device_type);
  if (type == kDLCUDA) return {DeviceKind::kCuda, device.device_id};
  DS_CHECK(type == kDLCPU || type == kDLCUDAHost, Code::kUnsupported, "the tensor lies on a ",
           device_name(type), " device, which is not supported; copy it to the CPU first");
  return {};
}

// -1, as DLPack's protocol for Python has it: the caller orders the work.
bool asks_for_no_wait(const void* stream) {
  return reinterpret_cast<uintptr_t>(stream) == std::numeric_limits<uintptr_t>::max();
}

void check_stream(DeviceKind kind, const void* stream) {
  DS_CHECK(stream == nullptr || asks_for_no_wait(stream) || kind == DeviceKind::kCuda,
           Code::kInvalidArgument, "stream must be NULL: host memory has no streams");
}

// Whoever reads an exported tensor does so after our work on it: on the stream that is named, or,
// without one, on any.
void order_reader(Device& device, void* stream) {
  if (asks_for_no_wait(stream)) return;
  auto* const gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr || stream == nullptr) return device.default_stream().synchronize();
  gpu->borrow_stream(stream)->wait(*gpu->default_stream().record());
}

template <class Managed>
LentTensor import_checked(Managed* managed, bool read_only, void* stream) {
  const DLTensor& t = managed->dl_tensor;
  const MemoryPlace place = place_of(t.device);
  check_stream(place.kind, stream);
  DS_CHECK(t.ndim >= 0 && t.ndim <= kMaxDims, Code::kInvalidArgument, "the tensor has ", t.ndim,
           " dimensions; 0 to ", kMaxDims, " are supported");
  DS_CHECK(t.ndim == 0 || t.shape != nullptr, Code::kInvalidArgument, "the tensor's shape is NULL");
  const DType dtype = dtype_from_dlpack(t.dtype);
  const auto dims = static_cast<size_t>(t.ndim);
  const Shape shape(std::span<const int64_t>(t.shape, dims));
  std::span<const int64_t> strides;
  if (t.strides != nullptr) strides = {t.strides, dims};

  auto address = reinterpret_cast<uintptr_t>(t.data);
  if (shape.elements() > 0) {
    DS_CHECK(address != 0, Code::kInvalidArgument, "the tensor's data is NULL");
    DS_CHECK(!__builtin_add_overflow(address, t.byte_offset, &address), Code::kInvalidArgument,
             "byte_offset ", t.byte_offset, " leaves the address space");
  }
  void* const data = reinterpret_cast<void*>(address);
  if (place.kind == DeviceKind::kCuda && shape.elements() > 0) {
    accept_cuda_memory(place.index, data);
    if (!asks_for_no_wait(stream)) wait_for_lender(place.index, stream);
  }
  return lend_memory(place, data, dtype, shape, strides, read_only, [managed] {
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
}

// What an exported struct points to; the struct itself comes first, so that one deletion ends all.
template <class Managed>
struct Exported {
  Managed managed{};
  Tensor tensor;
  std::array<int64_t, kMaxDims> shape{};
  std::array<int64_t, kMaxDims> strides{};
};

template <class Managed>
void delete_exported(Managed* managed) {
  if (managed != nullptr) delete static_cast<Exported<Managed>*>(managed->manager_ctx);
}

template <class Managed>
Managed* export_tensor(const Tensor& tensor, void* stream) {
  DS_CHECK(tensor, Code::kInternal, "there is no tensor to export");
  const Storage& storage = *tensor.storage();
  check_stream(storage.device_kind(), stream);
  if (storage.device()) order_reader(*storage.device(), stream);
  auto out = std::make_unique<Exported<Managed>>();
  out->tensor = tensor;
  for (int i = 0; i < tensor.dims(); ++i) {
    out->shape[static_cast<size_t>(i)] = tensor.size(i);
    out->strides[static_cast<size_t>(i)] = tensor.stride(i);
  }
  DLTensor& t = out->managed.dl_tensor;
  t.data = tensor.raw();
  t.device = {static_cast<DLDeviceType>(storage.device_kind()), storage.device_index()};
  t.ndim = tensor.dims();
  t.dtype = dtype_to_dlpack(tensor.dtype());
  t.shape = out->shape.data();
  t.strides = out->strides.data();
  t.byte_offset = 0;
  out->managed.manager_ctx = out.get();
  out->managed.deleter = delete_exported<Managed>;
  return &out.release()->managed;
}

}  // namespace

LentTensor import_dlpack(DLManagedTensorVersioned* managed, void* stream) {
  DS_CHECK(managed != nullptr, Code::kInvalidArgument, "managed is NULL");
  // Another major version may have any layout behind the version: nothing else is read.
  DS_CHECK(managed->version.major == DLPACK_MAJOR_VERSION, Code::kUnsupported,
           "the tensor has DLPack version ", managed->version.major, ".", managed->version.minor,
           "; this library takes version ", DLPACK_MAJOR_VERSION, ".x");
  return import_checked(managed, (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0, stream);
}

LentTensor import_dlpack(DLManagedTensor* managed, void* stream) {
  DS_CHECK(managed != nullptr, Code::kInvalidArgument, "managed is NULL");
  return import_checked(managed, /*read_only=*/false, stream);
}

DLManagedTensorVersioned* export_dlpack(const Tensor& tensor, void* stream) {
  DLManagedTensorVersioned* const managed = export_tensor<DLManagedTensorVersioned>(tensor, stream);
  managed->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed->flags = tensor.storage()->read_only() ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
  return managed;
}

DLManagedTensor* export_dlpack_legacy(const Tensor& tensor, void* stream) {
  DS_CHECK(!tensor.storage()->read_only(), Code::kUnsupported,
           "the tensor is read-only, which DLPack before 1.0 cannot say; use "
           "ds_tensor_to_dlpack");
  return export_tensor<DLManagedTensor>(tensor, stream);
}

}  // namespace ds
