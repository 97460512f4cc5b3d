#include "tensor/dtype.h"

#include <array>

namespace ds {
namespace {

struct DTypeInfo {
  std::string_view name;
  int64_t size;
  bool floating;
};
constexpr std::array<DTypeInfo, 14> kInfo = {{{"invalid", 0, false},
                                              {"float32", 4, true},
                                              {"float64", 8, true},
                                              {"float16", 2, true},
                                              {"bfloat16", 2, true},
                                              {"int8", 1, false},
                                              {"int16", 2, false},
                                              {"int32", 4, false},
                                              {"int64", 8, false},
                                              {"uint8", 1, false},
                                              {"uint16", 2, false},
                                              {"uint32", 4, false},
                                              {"uint64", 8, false},
                                              {"bool", 1, false}}};
const DTypeInfo& info(DType dtype) noexcept { return kInfo[static_cast<size_t>(dtype)]; }

}  // namespace

bool is_dtype(int32_t code) noexcept { return code >= 1 && code < static_cast<int>(kInfo.size()); }
int64_t dtype_size(DType dtype) noexcept { return info(dtype).size; }
std::string_view dtype_name(DType dtype) noexcept { return info(dtype).name; }
bool dtype_is_floating(DType dtype) noexcept { return info(dtype).floating; }

std::optional<DType> dtype_named(std::string_view name) noexcept {
  for (int32_t code = 1; is_dtype(code); ++code) {
    if (dtype_name(static_cast<DType>(code)) == name) return static_cast<DType>(code);
  }
  return std::nullopt;
}

}  // namespace ds
