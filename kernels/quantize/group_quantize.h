// Numbers in 8 or 4 bits by groups of any even length, with fp32 scales: symmetric or with minima,
// rounded to the nearest or stochastically.
//
// An element is code * scale, or minimum + code * scale with minima:
//   symmetric   scale = largest magnitude / (2^(bits - 1) - 1), codes from -2^(bits - 1) + 1
//   minima      scale = (maximum - minimum) / (2^bits - 1), codes from 0
// The scale is rounded to fp32, codes are made in double with the stored one; so rounding to the
// nearest (ties to even) is off by half a step at most, and the last bits of fp32. A group with an
// element that is not finite comes back as NaN. With 4 bits two codes share a byte, the earlier one
// above; symmetric codes are in two's complement.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "base/thread_pool_fwd.h"
#include "kernels/float_type.h"

namespace ds::kernels {

struct GroupFormat {
  int bits = 8;       // 8 or 4
  int64_t group = 0;  // even; the last group may be shorter, and odd
  bool minima = false;

  int64_t groups(int64_t elements) const { return (elements + group - 1) / group; }
  int64_t code_bytes(int64_t elements) const { return bits == 8 ? elements : (elements + 1) / 2; }
};

struct GroupInput {
  FloatType type = FloatType::kFloat32;
  const void* x = nullptr;
  int64_t elements = 0;
  // Given, the fraction of an element's place between two codes is the probability of the upper
  // one: the mean of many roundings is the element. Element i draws number i of the stream.
  const RandomStream* random = nullptr;
};

// Scales and minima: one per group; `minima` only where the format has them.
struct GroupCodes {
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* minima = nullptr;
};

void quantize_groups(const GroupFormat& format, const GroupInput& in, const GroupCodes& out,
                     ThreadPool& pool);
// y has so many elements.
void dequantize_groups(const GroupFormat& format, const GroupCodes& in, int64_t elements,
                       FloatType type, void* y, ThreadPool& pool);
// What dequantising the codes would give, without them; y has the type of x and may be x.
void fake_quantize_groups(const GroupFormat& format, const GroupInput& in, void* y,
                          ThreadPool& pool);

}  // namespace ds::kernels
