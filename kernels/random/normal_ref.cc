// Normal numbers by the C library.
#include <cmath>
#include <numbers>

#include "kernels/random/normal.h"

namespace ds::kernels::reference {

void fill_normal(const RandomStream& stream, int64_t begin, int64_t count, double deviation,
                 double* out) {
  for (int64_t i = begin; i < begin + count; ++i) {
    const auto pair = static_cast<uint64_t>(i / 2 * 2);
    const double u = (stream.bits(pair) + 0.5) * 0x1.0p-32;
    const double angle = 2 * std::numbers::pi * (stream.bits(pair + 1) + 0.5) * 0x1.0p-32;
    const double radius = std::sqrt(-2 * std::log(u));
    out[i - begin] = deviation * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }
}

}  // namespace ds::kernels::reference
