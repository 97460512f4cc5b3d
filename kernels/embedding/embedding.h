// Rows of a table looked up by id, and the gradient of the table.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// Index of the first id outside [0, limit), -1 if there is none.
int64_t first_id_outside(const int32_t* ids, int64_t n, int64_t limit);

// y[i, :] = table[ids[i], :] + positions[position_ids[i], :]. On the CPU ids are inside their
// tables; a GPU makes NaN of rows whose ids are not.
template <class T>
struct Embedding {
  const int32_t* ids = nullptr;
  const T* table = nullptr;
  int64_t table_rows = 0;
  const int32_t* position_ids = nullptr;
  const T* positions = nullptr;  // may be null
  int64_t position_rows = 0;
  int64_t n = 0, cols = 0;
  T* y = nullptr;
};
void embedding(const Embedding<float>& call, ThreadPool& pool);
void embedding(const Embedding<bfloat16>& call, ThreadPool& pool);
void embedding(const Embedding<float16>& call, ThreadPool& pool);
void embedding(const Embedding<float>& call, const GpuStream& on);
void embedding(const Embedding<bfloat16>& call, const GpuStream& on);
void embedding(const Embedding<float16>& call, const GpuStream& on);

// dtable[ids[i], :] += dy[i, :], every element of the table by one writer. The CPU adds in index
// order; its columns are cut among threads. A GPU sorts the ids first, and passes over those that
// are outside the table. The row `padding` (-1: none) gets nothing.
template <class T>
struct EmbeddingBackward {
  const int32_t* ids = nullptr;
  const T* dy = nullptr;
  int64_t n = 0, cols = 0;
  float* dtable = nullptr;
  int64_t rows = 0;  // of the table
  int32_t padding = -1;
  int32_t* scratch = nullptr;  // for a GPU, see below
  float* partials = nullptr;
};
void embedding_backward(const EmbeddingBackward<float>& call, ThreadPool& pool);
void embedding_backward(const EmbeddingBackward<bfloat16>& call, ThreadPool& pool);
void embedding_backward(const EmbeddingBackward<float16>& call, ThreadPool& pool);
void embedding_backward(const EmbeddingBackward<float>& call, const GpuStream& on);
void embedding_backward(const EmbeddingBackward<bfloat16>& call, const GpuStream& on);
void embedding_backward(const EmbeddingBackward<float16>& call, const GpuStream& on);

// What a GPU needs backward: two lists of ids and places, and counts of digits per tile of them;
// two rows of sums per piece of the sorted list.
inline constexpr int64_t kEmbeddingDigits = 256, kEmbeddingTile = 2048, kEmbeddingPiece = 32;
inline int64_t embedding_scratch(int64_t n) {
  return 4 * n + kEmbeddingDigits * ((n + kEmbeddingTile - 1) / kEmbeddingTile);
}
inline int64_t embedding_partials(int64_t n, int64_t cols) {
  return 2 * ((n + kEmbeddingPiece - 1) / kEmbeddingPiece) * cols;
}

namespace reference {
void embedding(const int32_t* ids, const double* table, const int32_t* position_ids,
               const double* positions, int64_t n, int64_t cols, double* y);
void embedding_backward(const int32_t* ids, const double* dy, int64_t n, int64_t cols,
                        int64_t padding, double* dtable);
}  // namespace reference

}  // namespace ds::kernels
