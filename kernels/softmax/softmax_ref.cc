// Softmax of one row, as its definition says.
#include <cmath>
#include <limits>

#include "kernels/softmax/softmax.h"

namespace ds::kernels::reference {

void softmax(const double* x, const uint8_t* mask, int64_t visible, int64_t keys, double scale,
             double* y) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const auto counts = [&](int64_t j) {
    return j < visible && (mask == nullptr || mask[j] != 0) && scale * x[j] != kNothing;
  };
  double largest = kNothing, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    if (counts(j)) largest = std::fmax(largest, scale * x[j]);
  }
  for (int64_t j = 0; j < keys; ++j) {
    if (counts(j)) sum += std::exp(scale * x[j] - largest);
  }
  for (int64_t j = 0; j < keys; ++j) {
    y[j] = counts(j) ? std::exp(scale * x[j] - largest) / sum : 0;
  }
}

void softmax_backward(const double* y, const double* dy, int64_t keys, double scale, double* dx) {
  double dot = 0;
  for (int64_t j = 0; j < keys; ++j) dot += y[j] * dy[j];
  for (int64_t j = 0; j < keys; ++j) dx[j] = scale * y[j] * (dy[j] - dot);
}

}  // namespace ds::kernels::reference
