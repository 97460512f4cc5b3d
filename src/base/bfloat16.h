// bfloat16 storage type and exact scalar conversions (round to nearest even).
#pragma once

#include <bit>
#include <cstdint>

namespace ds {

struct bfloat16 {
  uint16_t bits = 0;
};

inline float to_float(bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline float to_float(float value) { return value; }

inline bfloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

// Narrowing to an element type, the counterpart of to_float.
template <class T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline bfloat16 from_float<bfloat16>(float value) {
  return to_bfloat16(value);
}

}  // namespace ds
