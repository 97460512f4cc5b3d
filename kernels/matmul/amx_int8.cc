// int8 products on AMX tiles: blocks of 32 x 32 as 2 x 2 tiles, 64 steps of k per instruction. The
// blocking is that of amx_bfloat16.cc.
#include <hwy/base.h>
#include <immintrin.h>

#include "kernels/matmul/int8_kernel.h"
#include "kernels/matmul/pack_avx512.h"

HWY_PUSH_ATTRIBUTES("amx-int8,amx-tile,avx512f")
namespace ds::kernels::gemm {
namespace {

constexpr int64_t kRows = 32, kColumns = 32, kGroup = 64;
constexpr int64_t kAStep = kRows * 64;         // bytes of a panel of A per group
constexpr int64_t kBStep = kColumns * 4 * 16;  // 16 quads of k

// Tiles 0 to 3 hold C, 4 and 5 rows of A, 6 and 7 columns of B.
void multiply(const MultiplyCall& call) {
  constexpr int64_t kCBytes = kColumns * 4, kBBytes = kColumns * 4;
  const auto* a_panel = static_cast<const char*>(call.a);
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
    for (int64_t k = 0; k < call.depth; k += kGroup, a += kAStep, b += kBStep) {
      _tile_loadd(6, b, kBBytes);
      _tile_loadd(4, a, 64);
      _tile_dpbssd(0, 4, 6);
      _tile_loadd(5, a + 1024, 64);
      _tile_dpbssd(2, 5, 6);
      _tile_loadd(7, b + 64, kBBytes);
      _tile_dpbssd(1, 4, 7);
      _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, c, kCBytes);
    _tile_stored(1, c + 16, kCBytes);
    _tile_stored(2, lower, kCBytes);
    _tile_stored(3, lower + 16, kCBytes);
    a_panel += call.a_panel;
    c += kRows * kColumns;
  }
}

void pack_a(const PackCall& call) {
  copy_tiles_avx512({.from = call.from,
                     .stride_bytes = call.stride,
                     .width = call.width,
                     .bytes = call.depth,
                     .to = call.to});
}

void pack_b(const PackCall& call) {
  transpose_words_avx512({.from = call.from,
                          .stride_bytes = call.stride,
                          .width = call.width,
                          .bytes = call.depth,
                          .panel_width = kColumns,
                          .words = (call.depth + kGroup - 1) / kGroup * (kGroup / 4),
                          .to = call.to});
}

}  // namespace

const Kernel& amx_int8_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .group = kGroup,
                                 .depth = 512,
                                 .element_bytes = 1,
                                 .packed_bytes = 1,
                                 .tiles = true,
                                 .a = {pack_a, nullptr},
                                 .b = {pack_b, nullptr},
                                 .multiply = multiply};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
