// bf16 products on AMX tiles: blocks of 32 x 32 as 2 x 2 tiles, 32 steps of k per instruction.
//
// A panel of A meets all panels of B over the whole depth before the next one: the sums of a block
// stay in tiles, and the second-level cache holds little beside B. Steps of 256, for which a panel
// of B fits into the first-level cache, were slower by up to a tenth, since sums then wait in the
// second-level cache.
#include <type_traits>

#include "kernels/matmul/amx_blocks.h"
#include "kernels/matmul/pack_avx512.h"

namespace ds::kernels::gemm {
namespace {

constexpr int64_t kLine = 64;

template <amx::Kept kKept>
struct Steps {
  static constexpr int64_t kGroup = 32;
  static constexpr int64_t b_step = kTileColumns * 4 * 16;  // 16 pairs of k
  int64_t a_row, a_step;

  __attribute__((always_inline)) void add(const char* a, const char* b) const {
    const amx::LeftRows rows{a, a + 16 * a_row, a_row};
    const amx::RightColumns columns{b, b + 64, kTileColumns * 4};
    if constexpr (kKept == amx::Kept::kNone) {
      amx::load_and_add_product<amx::BFloat16Product, kKept>(rows, columns);
    } else {
      amx::add_product<amx::BFloat16Product, kKept>(rows, columns);
    }
  }
};

// A panel of A meets one panel of B after the other: it stays in the first-level cache, of 48 KiB,
// as far as it fits. Bounds and orders as measured.
void multiply(const MultiplyCall& call) {
  constexpr int64_t kPacked = 32 << 10, kInPlace = 96 << 10;
  const int64_t panel = call.depth * 2 * kTileRows;
  const auto run = [&](auto kept) __attribute__((always_inline)) {
    multiply_on_tiles(call, Steps<decltype(kept)::value>{call.a_row, call.a_group});
  };
  using amx::Kept;
  const bool packed = call.a_row == kLine;
  if (panel <= (packed ? kPacked : kInPlace)) {
    run(std::integral_constant<Kept, Kept::kLeft>());
  } else if (packed) {
    run(std::integral_constant<Kept, Kept::kNone>());
  } else {
    run(std::integral_constant<Kept, Kept::kBoth>());
  }
}

constexpr int64_t kGroup = Steps<amx::Kept::kBoth>::kGroup;

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
                          .panel_width = kTileColumns,
                          .words = padded_pairs(call.depth),
                          .to = call.to});
}
void pack_b_columns(const PackCall& call) {
  interleave_pairs_avx512(call, kTileColumns, padded_pairs(call.depth));
}

}  // namespace

const Kernel& amx_bfloat16_kernel() {
  static constexpr Kernel kernel{.rows = kTileRows,
                                 .columns = kTileColumns,
                                 .group = kGroup,
                                 .depth = 256,
                                 .element_bytes = 2,
                                 .packed_bytes = 2,
                                 .round_depth = 768,
                                 .tile_bytes = 64,
                                 .unpacked_rows = 64,
                                 .round_depth_in_place = 2048,
                                 .whole_depth_along = true,
                                 .whole_depth_across = true,
                                 .fetches_results = true,
                                 .a = {pack_a_rows, transpose_tiles_avx512},
                                 .b = {pack_b_rows, pack_b_columns},
                                 .multiply = multiply,
                                 .store_bfloat16 = store_bfloat16_avx512};
  return kernel;
}

}  // namespace ds::kernels::gemm
