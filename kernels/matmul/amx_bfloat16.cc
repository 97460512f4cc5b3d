// bf16 products on AMX tiles: blocks of 32 x 32 as 2 x 2 tiles, 32 steps of k per instruction.
//
// The panel of B (kc x 32) stays in the first-level cache while row panels of A stream past it;
// kc = 256 leaves room for both and for the block of C. Larger kc, software prefetch and wider
// blocks measured slower.
#include <hwy/base.h>
#include <immintrin.h>

#include "kernels/matmul/kernel.h"
#include "kernels/matmul/pack_avx512.h"

HWY_PUSH_ATTRIBUTES("amx-bf16,amx-tile,avx512f")
namespace ds::kernels::gemm {
namespace {

constexpr int64_t kRows = 32, kColumns = 32, kGroup = 32;
constexpr int64_t kBStep = kColumns * 4 * 16;  // 16 pairs of k

// Tiles 0 to 3 hold C, 4 and 5 rows of A, 6 and 7 columns of B.
void multiply(const MultiplyCall& call) {
  constexpr int64_t kCBytes = kColumns * 4, kBBytes = kColumns * 4;
  const auto* a_panel = static_cast<const char*>(call.a);
  const int64_t a_half = 16 * call.a_row;
  float* c = call.c;
  for (int64_t block = 0; block < call.blocks; ++block) {
    float* const lower = c + 16 * kColumns;
    if (call.first) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, c, kCBytes);
      _tile_loadd(1, c + 16, kCBytes);
      _tile_loadd(2, lower, kCBytes);
      _tile_loadd(3, lower + 16, kCBytes);
    }
    const char* a = a_panel;
    const auto* b = static_cast<const char*>(call.b);
    for (int64_t k = 0; k < call.depth; k += kGroup, a += call.a_group, b += kBStep) {
      _tile_loadd(6, b, kBBytes);
      _tile_loadd(4, a, call.a_row);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a + a_half, call.a_row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, b + 64, kBBytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, kCBytes);
    _tile_stored(1, c + 16, kCBytes);
    _tile_stored(2, lower, kCBytes);
    _tile_stored(3, lower + 16, kCBytes);
    a_panel += call.a_panel;
    c += kRows * kColumns;
  }
}

void pack_a_rows(const PackCall& call) {
  copy_tiles_avx512({.from = call.from,
                     .stride_bytes = call.stride * 2,
                     .width = call.width,
                     .bytes = call.depth * 2,
                     .to = call.to});
}

int64_t padded_pairs(int64_t depth) { return (depth + kGroup - 1) / kGroup * (kGroup / 2); }

void pack_b_rows(const PackCall& call) {
  transpose_words_avx512({.from = call.from,
                          .stride_bytes = call.stride * 2,
                          .width = call.width,
                          .bytes = call.depth * 2,
                          .panel_width = kColumns,
                          .words = padded_pairs(call.depth),
                          .to = call.to});
}
void pack_b_columns(const PackCall& call) {
  interleave_pairs_avx512(call, kColumns, padded_pairs(call.depth));
}

}  // namespace

const Kernel& amx_bfloat16_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .group = kGroup,
                                 .depth = 256,
                                 .element_bytes = 2,
                                 .packed_bytes = 2,
                                 .round_depth = 768,
                                 .tiles = true,
                                 .unpacked_rows = 64,
                                 .round_depth_in_place = 2048,
                                 .a = {pack_a_rows, transpose_tiles_avx512},
                                 .b = {pack_b_rows, pack_b_columns},
                                 .multiply = multiply,
                                 .store_bfloat16 = store_bfloat16_avx512};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
