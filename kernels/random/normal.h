// Normal numbers from counted random bits (Box and Muller, "A note on the generation of random
// normal deviates", 1958): element i is a function of stream and i alone, the same bits on every
// processor.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace ds::kernels {

// Elements [begin, begin + count) of a stream, with mean 0. Each pair of elements comes from a pair
// of random words; (word + 1/2) / 2^32 is never 0.
struct NormalNumbers {
  RandomStream stream;
  int64_t begin = 0;
  int64_t count = 0;
  double deviation = 1;
  float* out = nullptr;
};
// On the calling thread.
void fill_normal(const NormalNumbers& call);

namespace reference {
// The same in double precision, by the C library's functions.
void fill_normal(const RandomStream& stream, int64_t begin, int64_t count, double deviation,
                 double* out);
}  // namespace reference

}  // namespace ds::kernels
