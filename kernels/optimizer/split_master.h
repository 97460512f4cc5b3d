// fp32 master weights in two halves: the bf16 weight that the model computes with, and what it
// lacks of the fp32 number. master bits = (weight << 16) + sign_extend(low), so the weight is the
// master rounded half up in magnitude; together they take the room of the master alone.
#pragma once

#include <bit>
#include <cstdint>

#include "base/bfloat16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// constexpr, so that device code has them too.
constexpr float join_master(bfloat16 weight, uint16_t low) {
  const uint32_t high = static_cast<uint32_t>(weight.bits) << 16;
  return std::bit_cast<float>(high + static_cast<uint32_t>(static_cast<int16_t>(low)));
}

// A finite master beyond the largest bf16 rounds to infinity as a weight and still joins to itself.
constexpr void split_master(float master, bfloat16& weight, uint16_t& low) {
  const uint32_t bits = std::bit_cast<uint32_t>(master);
  weight.bits = static_cast<uint16_t>((bits + 0x8000u) >> 16);
  low = static_cast<uint16_t>(bits);
}

void split_masters(int64_t n, const float* masters, bfloat16* weights, uint16_t* low,
                   ThreadPool& pool);
void split_masters(int64_t n, const float* masters, bfloat16* weights, uint16_t* low,
                   const GpuStream& on);
void join_masters(int64_t n, const bfloat16* weights, const uint16_t* low, float* masters,
                  ThreadPool& pool);
void join_masters(int64_t n, const bfloat16* weights, const uint16_t* low, float* masters,
                  const GpuStream& on);

}  // namespace ds::kernels
