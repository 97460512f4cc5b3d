// IEEE half precision as a storage type, with exact scalar conversions (round to nearest even).
#pragma once

#include <bit>
#include <cstdint>

#include "base/bfloat16.h"

namespace ds {

struct float16 {
  uint16_t bits = 0;
};

// A signalling NaN becomes quiet, as in the conversions of the hardware.
inline float to_float(float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity and NaN
    const uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | ((magnitude & 0x3FFu) << 13));
  }
  // Scaling by 2^112 moves the exponent bias exactly, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1.0p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

// Beyond 65504 to infinity; a NaN stays one and becomes quiet.
inline float16 to_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return {static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu))};
  }
  if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7C00u)};  // from 2^16 on
  if (magnitude < 0x38800000u) {
    // Subnormal or zero: adding 0.5 leaves the half's bits at the end of the float's fraction.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F000000u))};
  }
  const uint32_t rebiased = magnitude - (112u << 23);
  const uint32_t rounded = rebiased + 0xFFFu + ((rebiased >> 13) & 1u);  // may carry to infinity
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

template <>
inline float16 from_float<float16>(float value) {
  return to_float16(value);
}

}  // namespace ds
