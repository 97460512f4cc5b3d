// Keys of latent attention, element by element.
#include "kernels/attention/latent.h"

namespace ds::kernels::reference {

void latent_keys(const LatentKeys& s, const double* expanded, const double* shared, double* keys) {
  const int64_t size = s.plain + s.turning;
  for (int64_t i = 0; i < s.tokens * s.heads * size; ++i) {
    const int64_t channel = i % size, head = i / size % s.heads, token = i / size / s.heads;
    keys[i] = channel < s.plain
                  ? expanded[(token * s.heads + head) * (s.plain + s.values) + channel]
                  : shared[token * s.turning + channel - s.plain];
  }
}

}  // namespace ds::kernels::reference
