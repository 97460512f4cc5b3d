// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// Randomness is counted, not carried: the value of element i of operator o at step s under seed k
// is a pure function of (k, s, o, i), whatever the threads, and recomputation replays it.
#pragma once

#include <array>
#include <cstdint>

namespace ds {

using Philox4 = std::array<uint32_t, 4>;

inline Philox4 philox4x32(Philox4 counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// One random stream: the elements of one operator at one step, of which each sample of a batch has
// 2^34 of its own. Element i is lane i % 4 of the block with counter (i / 4, op, step), where the
// upper half of i / 4 counts samples from `sample` on.
struct RandomStream {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t op = 0;      // in a model: operator_in_layer()
  uint32_t sample = 0;  // of element 0
  // On a GPU, where given: kernels read the step and the sample there, in its memory, when they
  // run.
  const uint32_t* step_memory = nullptr;

  // The operators of a model are numbered within the layer that they belong to, so that their
  // numbers do not depend on which other layers ran before.
  static constexpr int kOperatorBits = 12;
  static constexpr uint32_t kLayers = uint32_t{1} << (32 - kOperatorBits);
  static constexpr uint32_t kOperators = uint32_t{1} << kOperatorBits;  // of one layer
  static constexpr uint32_t operator_in_layer(uint32_t layer, uint32_t index) {
    return layer << kOperatorBits | index;
  }

  static constexpr int kSampleBits = 34;
  // The first element of a batch's sample.
  static constexpr uint64_t first_of_sample(int64_t index) {
    return static_cast<uint64_t>(index) << kSampleBits;
  }
  Philox4 block(uint64_t index) const {
    return philox4x32(
        {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32) + sample, op, step},
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  uint32_t bits(uint64_t element) const { return block(element / 4)[element % 4]; }
};

// Uniform in [0, 1) with 24 bits.
inline float uniform_from_bits(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }

// An element is dropped when its 32 random bits are below this threshold; exact for p in [0, 1).
inline uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

}  // namespace ds
