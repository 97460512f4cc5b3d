// Rows of a table looked up by id, and the gradient of the table.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool.h"

namespace ds::kernels {

// Index of the first id outside [0, limit), -1 if there is none.
int64_t first_id_outside(const int32_t* ids, int64_t n, int64_t limit);

// y[i, :] = table[ids[i], :] + positions[position_ids[i], :]; `positions` may be null. Ids are
// inside their tables.
void embedding(const int32_t* ids, const float* table, const int32_t* position_ids,
               const float* positions, int64_t n, int64_t cols, float* y, ThreadPool& pool);
void embedding(const int32_t* ids, const bfloat16* table, const int32_t* position_ids,
               const bfloat16* positions, int64_t n, int64_t cols, bfloat16* y, ThreadPool& pool);
void embedding(const int32_t* ids, const float16* table, const int32_t* position_ids,
               const float16* positions, int64_t n, int64_t cols, float16* y, ThreadPool& pool);

// dtable[ids[i], :] += dy[i, :] in index order. The columns are cut among threads, so every element
// of the table has one writer.
void embedding_backward(const int32_t* ids, const float* dy, int64_t n, int64_t cols, float* dtable,
                        ThreadPool& pool);
void embedding_backward(const int32_t* ids, const bfloat16* dy, int64_t n, int64_t cols,
                        float* dtable, ThreadPool& pool);
void embedding_backward(const int32_t* ids, const float16* dy, int64_t n, int64_t cols,
                        float* dtable, ThreadPool& pool);

namespace reference {
void embedding(const int32_t* ids, const double* table, const int32_t* position_ids,
               const double* positions, int64_t n, int64_t cols, double* y);
void embedding_backward(const int32_t* ids, const double* dy, int64_t n, int64_t cols,
                        double* dtable);
}  // namespace reference

}  // namespace ds::kernels
