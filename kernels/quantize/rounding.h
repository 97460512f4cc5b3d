// How numbers become codes: what the CPU's and the GPU's quantisation share, so that their bits are
// the same.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ds::kernels {

// Round to nearest, ties to even, for |x| < 2^22: the sum's low bits are the integer.
constexpr int32_t nearest(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return static_cast<int32_t>(x + kMagic - kMagic);
}

// The whole number nearest to x among low ... high, which are less than 512.
constexpr int32_t nearest_code(float x, int32_t low, int32_t high) {
  const float bounded = std::min(std::max(x, -512.0f), 512.0f);
  return std::min(std::max(nearest(bounded), low), high);
}

// What elements are multiplied with; 0 where the scale is too small to have an inverse.
constexpr float inverse_of(float scale) {
  const float inverse = 1 / scale;
  return scale == 0 || inverse - inverse != 0 ? 0.0f : inverse;
}

constexpr float magnitude(float x) { return x > 0 ? x : 0 - x; }

// ---- weights: kernels/quantize/quantize.h says what is stored ----

struct CodeRange {
  int32_t low, high;
  int32_t shift;  // added when codes are stored
};
constexpr CodeRange code_range(int bits, bool minima) {
  if (bits == 8) return {-127, 127, 0};
  return minima ? CodeRange{0, 15, 0} : CodeRange{-8, 7, 8};
}

// The scale of a group before it is rounded, from its least and largest element and its stored
// minimum.
constexpr float group_scale(int bits, bool minima, float least, float most, float minimum) {
  if (bits == 8) return std::max(magnitude(least), magnitude(most)) / 127;
  if (minima) return (most - minimum) / 15;
  return (magnitude(least) >= magnitude(most) ? least : most) / -8;
}

// The bits of the largest bf16 that is not above x, from those of the nearest, which is `rounded`:
// a minimum above x would cut elements off.
constexpr uint16_t bits_not_above(float x, uint16_t bits, float rounded) {
  if (rounded <= x) return bits;
  return static_cast<uint16_t>(x > 0 ? bits - 1 : bits + 1);
}

// Where the code of an element begins in its word of 4-bit codes.
constexpr int bit_of(int64_t column) {
  return static_cast<int>(4 * (column % 8 / 2) + 16 * (column % 2));
}

}  // namespace ds::kernels
