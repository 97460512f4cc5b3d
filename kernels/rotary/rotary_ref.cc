// Rotary position embedding in plain double precision.
#include "kernels/rotary/rotary.h"

namespace ds::kernels::reference {

void rotary(int64_t head_dim, int64_t rotary_dim, bool interleaved, bool inverse, const double* x,
            const double* cos, const double* sin, double* y) {
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const int64_t a = interleaved ? 2 * i : i;
    const int64_t b = interleaved ? 2 * i + 1 : i + rotary_dim / 2;
    const double s = inverse ? -sin[i] : sin[i];
    const double xa = x[a], xb = x[b];
    y[a] = xa * cos[i] - xb * s;
    y[b] = xb * cos[i] + xa * s;
  }
  for (int64_t i = rotary_dim; i < head_dim; ++i) y[i] = x[i];
}

}  // namespace ds::kernels::reference
