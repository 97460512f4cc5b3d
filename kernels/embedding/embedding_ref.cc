// The embedding and its gradient in plain double precision.
#include "kernels/embedding/embedding.h"

namespace ds::kernels::reference {

void embedding(const int32_t* ids, const double* table, const int32_t* position_ids,
               const double* positions, int64_t n, int64_t cols, double* y) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      y[i * cols + j] = table[ids[i] * cols + j];
      if (positions != nullptr) y[i * cols + j] += positions[position_ids[i] * cols + j];
    }
  }
}

void embedding_backward(const int32_t* ids, const double* dy, int64_t n, int64_t cols,
                        int64_t padding, double* dtable) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] == padding) continue;
    for (int64_t j = 0; j < cols; ++j) dtable[ids[i] * cols + j] += dy[i * cols + j];
  }
}

}  // namespace ds::kernels::reference
