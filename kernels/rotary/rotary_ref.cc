// Rotary position embedding in plain double precision.
#include "kernels/rotary/rotary.h"

namespace ds::kernels::reference {

void rotary(const RotaryHead& head) {
  const int64_t half = head.rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = head.interleaved ? 2 * i : i;
    const int64_t b = head.interleaved ? 2 * i + 1 : i + half;
    const double s = head.inverse ? -head.sin[i] : head.sin[i];
    const double xa = head.x[a], xb = head.x[b];
    head.y[a] = xa * head.cos[i] - xb * s;
    head.y[b] = xb * head.cos[i] + xa * s;
  }
  for (int64_t i = head.rotary_dim; i < head.head_dim; ++i) head.y[i] = head.x[i];
}

}  // namespace ds::kernels::reference
