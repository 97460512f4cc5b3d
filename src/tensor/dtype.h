// Element types. Numbers equal ds_dtype in ds.h (asserted in src/capi).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ds {

enum class DType : int32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kUInt8 = 9,
  kUInt16 = 10,
  kUInt32 = 11,
  kUInt64 = 12,
  kBool = 13,
};

bool is_dtype(int32_t code) noexcept;
int64_t dtype_size(DType dtype) noexcept;           // bytes per element
std::string_view dtype_name(DType dtype) noexcept;  // "float32", ...
std::optional<DType> dtype_named(std::string_view name) noexcept;
bool dtype_is_floating(DType dtype) noexcept;

}  // namespace ds
