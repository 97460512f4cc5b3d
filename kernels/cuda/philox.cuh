// Philox4x32-10 in device code: the numbers of base/philox.h bit for bit.
#pragma once

#include "base/philox.h"
#include "kernels/cuda/device.cuh"

namespace ds::kernels::cuda {

struct Random4 {
  uint32_t at[4];
};

// The random bits of elements 4 * index ... 4 * index + 3 of a stream.
__device__ __forceinline__ Random4 random_block(const RandomStream& stream, uint64_t index) {
  const uint32_t* const memory = stream.step_memory;
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  c1 += memory == nullptr ? stream.sample : __ldg(memory + 1);
  uint32_t c2 = stream.op, c3 = memory == nullptr ? stream.step : __ldg(memory);
  uint32_t k0 = static_cast<uint32_t>(stream.seed), k1 = static_cast<uint32_t>(stream.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace ds::kernels::cuda
