// int8 products on AMX tiles: blocks of 32 x 32 as 2 x 2 tiles, 64 steps of k per instruction. The
// blocking is that of amx_bfloat16.cc.
#include "kernels/matmul/amx_blocks.h"
#include "kernels/matmul/int8_kernel.h"
#include "kernels/matmul/pack_avx512.h"

namespace ds::kernels::gemm {
namespace {

struct Steps {
  static constexpr int64_t kGroup = 64;
  static constexpr int64_t a_step = kTileRows * 64;
  static constexpr int64_t b_step = kTileColumns * 4 * 16;  // 16 quads of k

  __attribute__((always_inline)) void add(const char* a, const char* b) const {
    amx::add_product<amx::Int8Product>({a, a + 1024, 64}, {b, b + 64, kTileColumns * 4});
  }
};
constexpr int64_t kGroup = Steps::kGroup;

void multiply(const MultiplyCall& call) { multiply_on_tiles(call, Steps()); }

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
                          .panel_width = kTileColumns,
                          .words = (call.depth + kGroup - 1) / kGroup * (kGroup / 4),
                          .to = call.to});
}

}  // namespace

const Kernel& amx_int8_kernel() {
  static constexpr Kernel kernel{.rows = kTileRows,
                                 .columns = kTileColumns,
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
