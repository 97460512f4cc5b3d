#include "capi/scalar.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/bfloat16.h"
#include "base/error.h"

namespace ds::capi {
namespace {

template <class T>
T load(const void* element) {
  T value;
  std::memcpy(&value, element, sizeof(T));
  return value;
}

double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  double magnitude;
  if (exponent == 0x1F) {
    magnitude = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(mantissa + 0x400, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

double scalar_value(const void* element, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<double>(load<float>(element));
    case DType::kFloat64:
      return load<double>(element);
    case DType::kFloat16:
      return half_value(load<uint16_t>(element));
    case DType::kBFloat16:
      return static_cast<double>(to_float(load<bfloat16>(element)));
    case DType::kInt8:
      return load<int8_t>(element);
    case DType::kInt16:
      return load<int16_t>(element);
    case DType::kInt32:
      return load<int32_t>(element);
    case DType::kInt64:
      return static_cast<double>(load<int64_t>(element));
    case DType::kUInt8:
      return load<uint8_t>(element);
    case DType::kUInt16:
      return load<uint16_t>(element);
    case DType::kUInt32:
      return load<uint32_t>(element);
    case DType::kUInt64:
      return static_cast<double>(load<uint64_t>(element));
    case DType::kBool:
      return load<uint8_t>(element) != 0 ? 1 : 0;
  }
  fail(Code::kInternal, "a tensor with dtype ", static_cast<int32_t>(dtype));
}

}  // namespace ds::capi
