// How the backward pass of a normalisation cuts rows on a GPU: by their number alone, so that the
// sums over rows have the same bits on GPUs with any number of processors.
#pragma once

#include <cstdint>

namespace ds::kernels {

// More chunks than a GPU runs at once, for an even end; a chunk's sums cost little beside its rows.
inline int64_t gpu_norm_chunk_size(int64_t rows) {
  constexpr int64_t kLeast = 32, kMostChunks = 512;
  const int64_t size = (rows + kMostChunks - 1) / kMostChunks;
  return size < kLeast ? kLeast : size;
}
inline int64_t gpu_norm_chunks(int64_t rows) {
  const int64_t size = gpu_norm_chunk_size(rows);
  return (rows + size - 1) / size;
}

}  // namespace ds::kernels
