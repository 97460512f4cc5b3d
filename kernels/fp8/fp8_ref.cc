// The reference: codes by the definition of the formats, rounding by looking at all numbers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/fp8/fp8.h"

namespace ds::kernels::reference {

double fp8_value(Fp8Format format, uint8_t code) {
  const bool e4m3 = format == Fp8Format::kE4M3;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const double sign = code >= 128 ? -1 : 1;
  const int exponent = code % 128 >> mantissa_bits, mantissa = code % (1 << mantissa_bits);
  const double fraction = static_cast<double>(mantissa) / (1 << mantissa_bits);
  if (e4m3 && code % 128 == 127) return std::numeric_limits<double>::quiet_NaN();
  if (!e4m3 && exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

uint8_t fp8_code(Fp8Format format, double value) {
  const uint8_t sign = std::signbit(value) ? 128 : 0;
  if (std::isnan(value)) return 127;
  if (std::isinf(value)) return format == Fp8Format::kE4M3 ? 127 : static_cast<uint8_t>(sign + 124);
  const double size = std::min(std::abs(value), format == Fp8Format::kE4M3 ? 448.0 : 57344.0);
  uint8_t best = 0;
  double distance = size;
  for (uint8_t code = 1; std::isfinite(fp8_value(format, code)); ++code) {
    const double other = std::abs(size - fp8_value(format, code));
    if (other < distance || (other == distance && code % 2 == 0)) {
      best = code;
      distance = other;
    }
  }
  return static_cast<uint8_t>(sign + best);
}

double fp8_scale(Fp8Format format, double amax, int margin) {
  const double largest = format == Fp8Format::kE4M3 ? 448 : 57344;
  double scale = std::ldexp(1.0, 100 + margin);
  while (scale * amax > largest) scale /= 2;
  return std::ldexp(scale, -margin);
}

}  // namespace ds::kernels::reference
