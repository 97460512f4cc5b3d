// int8 by instructions that multiply pairs of 16-bit integers: packing, and what their kernels have
// in common.
#pragma once

#include <cstdint>

#include "kernels/matmul/kernel.h"

namespace ds::kernels::gemm {

// to[pair][kPanel] = {from[i][2 pair], from[i][2 pair + 1]} widened to 16 bits, for rows i that run
// along k; zero beyond `width` and `depth`.
template <int64_t kPanel>
void pack_int8_pairs(const PackCall& call) {
  const auto* from = static_cast<const int8_t*>(call.from);
  auto* to = static_cast<int16_t*>(call.to);
  const int64_t pairs = (call.depth + 1) / 2;
  for (int64_t i = 0; i < kPanel; ++i) {
    const int8_t* row = from + i * call.stride;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      int16_t* const word = to + (pair * kPanel + i) * 2;
      word[0] = i < call.width ? row[2 * pair] : int16_t{0};
      word[1] = i < call.width && 2 * pair + 1 < call.depth ? row[2 * pair + 1] : int16_t{0};
    }
  }
}

// A kernel of blocks of kRows x kColumns.
template <int64_t kRows, int64_t kColumns>
constexpr Kernel int8_pairs_kernel(void (*multiply)(const MultiplyCall&)) {
  return {.rows = kRows,
          .columns = kColumns,
          .group = 2,
          .depth = 512,
          .element_bytes = 1,
          .packed_bytes = 2,
          .a = {pack_int8_pairs<kRows>, nullptr},
          .b = {pack_int8_pairs<kColumns>, nullptr},
          .multiply = multiply};
}

}  // namespace ds::kernels::gemm
