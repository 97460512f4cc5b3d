// Element types by number, where one exported function serves all of them.
#pragma once

#include "base/bfloat16.h"
#include "base/float16.h"

namespace ds::kernels {

enum class FloatType { kFloat32, kBFloat16, kFloat16 };

template <class T>
inline constexpr FloatType kFloatType = FloatType::kFloat32;
template <>
inline constexpr FloatType kFloatType<bfloat16> = FloatType::kBFloat16;
template <>
inline constexpr FloatType kFloatType<float16> = FloatType::kFloat16;

// Calls fn with a value of the type.
template <class Fn>
auto with_float_type(FloatType type, const Fn& fn) {
  switch (type) {
    case FloatType::kBFloat16:
      return fn(bfloat16{});
    case FloatType::kFloat16:
      return fn(float16{});
    default:
      return fn(float{});
  }
}

}  // namespace ds::kernels
