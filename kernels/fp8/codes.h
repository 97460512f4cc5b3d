// Codes of 8 bits and their scales, in integer arithmetic that the CPU and the GPU share.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/fp8/fp8.h"

namespace ds::kernels {

template <Fp8Format kFormat>
struct Fp8Traits;
template <>
struct Fp8Traits<Fp8Format::kE4M3> {
  static constexpr int kMantissa = 3, kBias = 7, kTop = 8;  // kTop: exponent of the largest number
  static constexpr uint32_t kLargest = 0x7E, kInfinity = 0x7F;  // which is NaN
};
template <>
struct Fp8Traits<Fp8Format::kE5M2> {
  static constexpr int kMantissa = 2, kBias = 15, kTop = 15;
  static constexpr uint32_t kLargest = 0x7B, kInfinity = 0x7C;
};

inline constexpr uint32_t kFp8Nan = 0x7F;

// The code of x * scale, where scale is a power of two.
template <Fp8Format kFormat>
constexpr uint8_t fp8_code(float x, float scale) {
  using Format = Fp8Traits<kFormat>;
  constexpr int kDrop = 23 - Format::kMantissa;
  const uint32_t given = std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
  const uint32_t sign = std::bit_cast<uint32_t>(x) >> 24 & 0x80u;
  if (given > 0x7F800000u) return static_cast<uint8_t>(kFp8Nan);
  if (given == 0x7F800000u) {
    return static_cast<uint8_t>(kFormat == Fp8Format::kE4M3 ? kFp8Nan : sign | Format::kInfinity);
  }
  // May be infinite now: the largest number.
  const float scaled = std::bit_cast<float>(given) * scale;
  const uint32_t size = std::bit_cast<uint32_t>(scaled);
  constexpr uint32_t kLeastNormal = uint32_t{128 - Format::kBias} << 23;
  uint32_t code = 0;
  if (size < kLeastNormal) {
    // One unit of this number's last place is the step of the subnormals.
    constexpr uint32_t kMagic = uint32_t{127 + 24 - Format::kBias - Format::kMantissa} << 23;
    code = std::bit_cast<uint32_t>(scaled + std::bit_cast<float>(kMagic)) - kMagic;
  } else {
    const uint32_t rounded = size + ((1u << (kDrop - 1)) - 1) + (size >> kDrop & 1u);
    code = (rounded >> kDrop) - (uint32_t{127 - Format::kBias} << Format::kMantissa);
  }
  // Not std::min: a GPU has no address of the constant, and nvcc makes of a reference to it a trap.
  return static_cast<uint8_t>(sign | (code < Format::kLargest ? code : Format::kLargest));
}

template <Fp8Format kFormat>
constexpr float fp8_value(uint8_t code) {
  using Format = Fp8Traits<kFormat>;
  const uint32_t sign = uint32_t{code & 0x80u} << 24, size = code & 0x7Fu;
  const bool finite = size <= Format::kLargest;
  // Moves the bias of the exponent, subnormals included.
  constexpr float kShift = std::bit_cast<float>(uint32_t{254 - Format::kBias} << 23);
  const float value = std::bit_cast<float>(size << (23 - Format::kMantissa)) * kShift;
  const uint32_t other =
      kFormat == Fp8Format::kE5M2 && size == Format::kInfinity ? 0x7F800000u : 0x7FC00000u;
  return std::bit_cast<float>(sign | (finite ? std::bit_cast<uint32_t>(value) : other));
}

// |x| where x is finite, else 0.
constexpr float finite_size(float x) {
  const uint32_t size = std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
  return size < 0x7F800000u ? std::bit_cast<float>(size) : 0.0f;
}

// 2^e with the largest e for which amax * 2^(e + margin) is in the format; amax > 0 and finite. Far
// exponents are cut so that scale and inverse are normal numbers and codes over scale are of bf16.
constexpr float fp8_scale(Fp8Format format, float amax, int margin) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const int top = format == Fp8Format::kE4M3 ? Fp8Traits<Fp8Format::kE4M3>::kTop
                                             : Fp8Traits<Fp8Format::kE5M2>::kTop;
  // The largest numbers are 1.75 times a power of two.
  const int over = (bits & 0x7FFFFFu) > 0x600000u ? 1 : 0;
  const int e = std::clamp(top - exponent - over - margin, -126, 100);
  return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
}
constexpr float fp8_inverse(float scale) {
  return std::bit_cast<float>((254u << 23) - std::bit_cast<uint32_t>(scale));
}

// What Fp8Update does to one tensor.
constexpr void fp8_update_one(const Fp8Update& call, Fp8Format format, int64_t tensor) {
  float* const history = call.history + tensor * call.length;
  const float newest = call.amax[tensor];
  float most = newest;
  for (int64_t i = call.length - 1; i > 0; --i) {
    history[i] = history[i - 1];
    if (!call.most_recent) most = std::max(most, history[i]);
  }
  history[0] = newest;
  call.amax[tensor] = 0;
  if (!(most > 0)) return;
  call.scale[tensor] = fp8_scale(format, most, call.margin);
  call.inverse[tensor * call.inverse_step] = fp8_inverse(call.scale[tensor]);
}

// Calls fn with the format as a std::integral_constant.
template <class Fn>
void with_fp8_format(Fp8Format format, const Fn& fn) {
  if (format == Fp8Format::kE4M3) {
    fn(std::integral_constant<Fp8Format, Fp8Format::kE4M3>());
  } else {
    fn(std::integral_constant<Fp8Format, Fp8Format::kE5M2>());
  }
}

}  // namespace ds::kernels
