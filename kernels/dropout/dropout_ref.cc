// Dropout in plain double precision.
#include "kernels/dropout/dropout.h"

namespace ds::kernels::reference {

void dropout(const RandomStream& stream, int64_t sample_elements, double p, const double* x,
             const double* residual, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = stream.bits(RandomStream::first_of_sample(i / sample_elements) +
                                      static_cast<uint64_t>(i % sample_elements));
    const bool keep = bits >= dropout_threshold(p);
    y[i] = (keep ? x[i] / (1.0 - p) : 0.0) + (residual != nullptr ? residual[i] : 0.0);
  }
}

}  // namespace ds::kernels::reference
