// Memory of ds.h that stays in place, as tensors and as pointers.
#include <algorithm>

#include "capi/args.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"
#include "io/pinned.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

namespace {

std::shared_ptr<Storage> pinned_storage(int64_t bytes) {
  std::byte* const data = io::allocate_pinned(std::max<int64_t>(bytes, 1), io::PinnedFor::kTensor);
  const auto release = [data] { io::free_pinned(data, io::PinnedFor::kTensor); };
  try {
    return std::make_shared<Storage>(DeviceKind::kCpu, 0, data, bytes, false, release);
  } catch (...) {
    release();
    throw;
  }
}

}  // namespace

ds_status ds_pinned_tensor(ds_dtype dtype, const int64_t* shape, int32_t ndim,
                           ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const DType type = dtype_param(dtype, "dtype");
    const Shape sizes = shape_param(shape, ndim);
    ReservedTensor reserved;
    const int64_t bytes = sizes.elements() * dtype_size(type);
    out = reserved.give(Tensor(pinned_storage(bytes), 0, type, sizes));
  });
}

ds_status ds_pinned_allocate(int64_t size, void** out_memory) {
  return guard(__func__, [&] {
    void*& out = out_param(out_memory, "out_memory");
    DS_CHECK(size >= 1, Code::kInvalidArgument, "size is ", size, "; 1 or more is needed");
    out = io::allocate_pinned(size, io::PinnedFor::kCaller);
  });
}

ds_status ds_pinned_free(void* memory, ds_bool* out_known) {
  return guard(__func__, [&] {
    const bool known = io::free_pinned(memory, io::PinnedFor::kCaller);
    if (out_known != nullptr) *out_known = known ? 1 : 0;
  });
}

ds_status ds_pinned_contains(const void* memory, int64_t size, ds_bool* out_pinned) {
  return guard(__func__, [&] {
    ds_bool& out = out_param(out_pinned, "out_pinned");
    DS_CHECK(size >= 0, Code::kInvalidArgument, "size is ", size);
    out = io::is_pinned(memory, size) ? 1 : 0;
  });
}

ds_status ds_tensor_is_pinned(const ds_tensor* tensor, ds_bool* out_pinned) {
  return guard(__func__, [&] {
    const auto object = look_up(tensor, "tensor");
    ds_bool& out = out_param(out_pinned, "out_pinned");
    const Tensor& value = object->tensor;
    out = value.contiguous() && io::is_pinned(value.raw(), value.bytes()) ? 1 : 0;
  });
}
