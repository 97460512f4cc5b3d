// The product of packed blocks, by any of the kernels of kernel.h: what is packed when, which
// thread computes what, and where partial sums wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/thread_pool_fwd.h"
#include "kernels/float_type.h"
#include "kernels/matmul/kernel.h"

namespace ds::kernels::gemm {

// An operand as one of the packing functions of a kernel takes it; `along_k` says that k is the
// direction in which its rows are dense.
struct Operand {
  const void* data = nullptr;
  int64_t stride = 0;  // elements
  bool along_k = true;
  int64_t element_bytes = 4;
  void (*pack)(const PackCall&) = nullptr;
  // Of an A that is packed already, over all of k: bytes from one panel to the next. 0: it is not.
  int64_t packed_panel = 0;
  // Set for 16-bit operands of an fp32 kernel: what is handed to `pack` is a widened copy.
  std::optional<FloatType> widened = std::nullopt;
};

// A finished part of C: sums of rows [row, +rows) and columns [column, +columns), rows `stride`
// apart. It may be overwritten.
struct FinishedSums {
  float* sums;
  int64_t stride;
  int64_t row, rows, column, columns;
};

// Where finished parts are written, so that it can be fetched while they are multiplied. Strides in
// elements; null: nowhere.
struct Destination {
  const void* data = nullptr;
  int64_t stride = 0, element_bytes = 0;
};

struct BlockedProduct {
  int64_t m = 0, n = 0, k = 0;  // all positive
  Operand a, b;
  Destination c, pre = {};
};

// How k is cut: into rounds of `depth`, and those into calls of a kernel of `step`.
struct DepthCut {
  int64_t depth = 0, step = 0;
  // Of the step that begins at k.
  int64_t end_of_step(int64_t k, int64_t all) const {
    return std::min({k + step, k / depth * depth + depth, all});
  }
};
DepthCut cut_depth(const Kernel& kernel, int64_t k);

// Bytes of a row or column in panels of so much k.
int64_t packed_bytes(const Kernel& kernel, int64_t k);

// Calls `finish` for parts that together are C, each once, from the pool's threads.
void multiply_blocked(const Kernel& kernel, const BlockedProduct& product, ThreadPool& pool,
                      const std::function<void(const FinishedSums&)>& finish);

}  // namespace ds::kernels::gemm
