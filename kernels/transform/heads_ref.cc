// The permutation of one element, dimension by dimension.
#include "kernels/transform/heads.h"

namespace ds::kernels::reference {

int64_t split_place(const HeadShape& s, int64_t i) {
  const int64_t channel = i % s.size;
  i /= s.size;
  const int64_t head = i % s.heads;
  i /= s.heads;
  const int64_t part = i % s.parts;
  i /= s.parts;
  const int64_t token = i % s.tokens, sample = i / s.tokens;
  return (((part * s.batch + sample) * s.heads + head) * s.tokens + token) * s.size + channel;
}

}  // namespace ds::kernels::reference
