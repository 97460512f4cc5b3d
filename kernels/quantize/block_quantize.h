// Numbers in 8 or 4 bits with an fp32 scale per block: what ranks send each other in place of
// weights and gradients (Wang et al., ZeRO++, arXiv:2306.10209).
//
// The scale is the block's element of largest magnitude / -2^(bits - 1), so that this element comes
// back as it was, whatever its sign; 0 where that vanishes. A code is the nearest whole number to
// element / scale, ties to even, from -2^(bits - 1) to 2^(bits - 1) - 1. A block with an element
// that is not finite comes back as NaN. With 4 bits two codes share a byte, the earlier one above.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/float_type.h"

namespace ds::kernels {

inline constexpr int64_t kMostBlockElements = 512;

// Block i is elements [begins[i], begins[i + 1]): at most kMostBlockElements, and an even number
// except the last. Begins lie in the host's memory, whatever computes.
using BlockBegins = std::span<const int64_t>;

inline int64_t block_count(BlockBegins begins) { return static_cast<int64_t>(begins.size()) - 1; }

// What earlier roundings lost, kept in 8 bits with the scheme above. An element x is sent as
// x + error, and the error becomes beta * error + (1 - beta) * (what this rounding lost).
struct RoundingError {
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float beta = 0;
};

struct BlockQuantize {
  int bits = 8;
  BlockBegins begins;
  FloatType type = FloatType::kFloat32;
  const void* x = nullptr;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  const RoundingError* error = nullptr;  // or null; only with fp32 input
};
void quantize_blocks(const BlockQuantize& call, ThreadPool& pool);
void quantize_blocks(const BlockQuantize& call, const GpuStream& on);

// y = code * scale * factor, added to y when `add`.
struct BlockDequantize {
  int bits = 8;
  BlockBegins begins;
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  float factor = 1;
  bool add = false;
  FloatType type = FloatType::kFloat32;
  void* y = nullptr;
};
void dequantize_blocks(const BlockDequantize& call, ThreadPool& pool);
void dequantize_blocks(const BlockDequantize& call, const GpuStream& on);

// The reference of quantize_blocks in double: what the codes should be, one element at a time,
// given the stored scale.
int quantize_block_element_ref(int bits, double x, float scale);

}  // namespace ds::kernels
