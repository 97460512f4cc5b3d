// Sums of references, in double precision. Four or more of them at once, which wait less for each
// other: tests spend much of their time here.
#pragma once

#include <cstdint>

namespace ds::kernels {

inline double reference_dot(const double* x, const double* y, int64_t n) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t e = 0; e < 4; ++e) sums[e] += x[i + e] * y[i + e];
  }
  for (; i < n; ++i) sums[0] += x[i] * y[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// to += factor x; the two do not overlap.
inline void reference_add(double* to, double factor, const double* x, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    double terms[8];
    for (int64_t e = 0; e < 8; ++e) terms[e] = factor * x[i + e];
    for (int64_t e = 0; e < 8; ++e) to[i + e] += terms[e];
  }
  for (; i < n; ++i) to[i] += factor * x[i];
}

}  // namespace ds::kernels
