// Packing with AVX-512: panels of 32-bit words (a float, or a pair of bf16 along k) and rows of
// tiles. Used by the kernels of that width.
#pragma once

#include "kernels/matmul/kernel.h"

namespace ds::kernels::gemm {

// Sources that run along k, `bytes` per row: to[word][panel_width] = word `word` of row i, for
// `words` words (zero beyond the row). Elements of any size fit, since a word is what lies in one.
struct TransposeWords {
  const void* from = nullptr;
  int64_t stride_bytes = 0;
  int64_t width = 0, bytes = 0;
  int64_t panel_width = 0, words = 0;  // panel_width <= 32
  void* to = nullptr;
};
void transpose_words_avx512(const TransposeWords& call);

// The next two take sources that run across panels, some rows at a time (Kernel::chunk), and have
// the rows of the next time fetched: pieces of rows are too short for the processor to see a
// stream.
inline constexpr int64_t kAcrossChunk = 16;

// Kernel::cache_bytes and task_columns of what multiplies in registers: each block of rows reads
// the columns of B once, 4 GB/s at the arithmetic peak, which a third-level cache gives; and with
// wide tasks A is packed seldom.
inline constexpr int64_t kWideTaskBytes = 2 << 20, kWideTaskColumns = 1024;

// to[k][panel_width] = from[k * stride + i].
void copy_floats_avx512(const PackCall& call, int64_t panel_width);

// to[pair][panel_width] = {from[2 pair * stride + i], from[(2 pair + 1) * stride + i]}.
void interleave_pairs_avx512(const PackCall& call, int64_t panel_width, int64_t pairs);

// Tiles of 16 rows of 64 bytes, two of them above each other: to[step][32][64 bytes]. The first
// takes sources that run along k, `bytes` per row; the second bf16 that run across.
struct CopyTiles {
  const void* from = nullptr;
  int64_t stride_bytes = 0;
  int64_t width = 0, bytes = 0;
  void* to = nullptr;
};
void copy_tiles_avx512(const CopyTiles& call);
void transpose_tiles_avx512(const PackCall& call);

}  // namespace ds::kernels::gemm
