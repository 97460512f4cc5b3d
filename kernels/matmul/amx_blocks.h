// The loop of products on AMX tiles: blocks of C of 32 x 32 sums as 2 x 2 tiles, tiles 0 to 3.
#pragma once

#include <cstdint>

#include "kernels/amx_tiles.h"
#include "kernels/matmul/kernel.h"

namespace ds::kernels::gemm {

inline constexpr int64_t kTileRows = 32, kTileColumns = 32;  // of a block

// `steps` knows the packed panels: add(a, b) adds the products of kGroup steps of k, and a and b
// move on by a_step and b_step bytes.
template <class Steps>
inline __attribute__((always_inline)) void multiply_on_tiles(const MultiplyCall& call,
                                                             const Steps& steps) {
  constexpr int64_t kCBytes = kTileColumns * 4;
  const auto* a_panel = static_cast<const char*>(call.a);
  const auto* const b_panel = static_cast<const char*>(call.b);
  const int64_t rows = call.rows, depth = call.depth, a_bytes = call.a_panel;
  const bool first = call.first;
  // A few lines at a time: fetched at once, they hold up the tiles' own loads.
  const auto* next = static_cast<const char*>(call.next_rows > 0 ? call.next : call.a);
  const int64_t next_rows = call.next_rows, next_row = call.next_row;
  ResultsAhead results(call.results, rows, depth / Steps::kGroup);
  float* c = call.c;
  for (int64_t row = 0; row < rows; row += kTileRows) {
    float* const lower = c + 16 * kTileColumns;
    if (first) {
      amx::zero_sums();
    } else {
      amx::load<0>(c, kCBytes);
      amx::load<1>(c + 16, kCBytes);
      amx::load<2>(lower, kCBytes);
      amx::load<3>(lower + 16, kCBytes);
    }
    const char *a = a_panel, *b = b_panel;
    for (int64_t k = 0; k < depth; k += Steps::kGroup, a += steps.a_step, b += steps.b_step) {
      steps.add(a, b);
      fetch_lines(next, next_rows, next_row);
      results.fetch_some();
      next += steps.a_step;
    }
    amx::store<0>(c, kCBytes);
    amx::store<1>(c + 16, kCBytes);
    amx::store<2>(lower, kCBytes);
    amx::store<3>(lower + 16, kCBytes);
    a_panel += a_bytes;
    c += kTileRows * kTileColumns;
  }
}

}  // namespace ds::kernels::gemm
