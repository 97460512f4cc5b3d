#include "capi/token_args.h"

#include <algorithm>
#include <cstring>

#include "tensor/lent_memory.h"

namespace ds::capi {

std::vector<int32_t> id_list(const Tensor& tensor, const char* parameter) {
  DS_CHECK(tensor.dims() == 1, Code::kInvalidArgument, parameter, " must have shape [count], not ",
           tensor.shape().text());
  const auto count = static_cast<size_t>(tensor.elements());
  std::vector<int32_t> ids(count);
  if (tensor.dtype() == DType::kInt32) {
    copy_to_packed(tensor, ids.data());
    return ids;
  }
  DS_CHECK(tensor.dtype() == DType::kInt64, Code::kInvalidArgument, parameter,
           " must be int32 or int64, not ", dtype_name(tensor.dtype()));
  std::vector<int64_t> wide(count);
  copy_to_packed(tensor, wide.data());
  for (size_t i = 0; i < count; ++i) {
    DS_CHECK(wide[i] >= INT32_MIN && wide[i] <= INT32_MAX, Code::kInvalidArgument, parameter, "[",
             i, "] is ", wide[i], ", which is no token id");
    ids[i] = static_cast<int32_t>(wide[i]);
  }
  return ids;
}

namespace {

template <class T>
Tensor list_tensor(std::span<const T> numbers, DType dtype) {
  CpuDeviceOptions options;
  options.cache = false;
  Tensor tensor =
      Tensor::empty(make_cpu_device(options), dtype, {std::ssize(numbers)}, MemoryTag::kOther);
  if (!numbers.empty()) std::memcpy(tensor.raw(), numbers.data(), numbers.size_bytes());
  return tensor;
}

}  // namespace

Tensor id_tensor(std::span<const int32_t> ids) { return list_tensor(ids, DType::kInt32); }

Tensor count_tensor(std::span<const int64_t> counts) { return list_tensor(counts, DType::kInt64); }

}  // namespace ds::capi
