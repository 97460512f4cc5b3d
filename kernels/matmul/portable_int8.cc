// int8 products in plain C++.
#include <cstdint>

#include "kernels/matmul/int8_kernel.h"
#include "kernels/matmul/int8_pairs.h"

namespace ds::kernels::gemm {
namespace {

constexpr int64_t kRows = 4, kColumns = 8, kWord = 2;

void multiply(const MultiplyCall& call) {
  const auto* panel = static_cast<const char*>(call.a);
  auto* c = reinterpret_cast<int32_t*>(call.c);
  for (int64_t row = 0; row < call.rows; row += kRows) {
    int32_t sums[kRows][kColumns] = {};
    if (!call.first) {
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) sums[i][j] = c[i * kColumns + j];
      }
    }
    const auto* a = reinterpret_cast<const int16_t*>(panel);
    const auto* b = static_cast<const int16_t*>(call.b);
    for (int64_t k = 0; k < call.depth; k += kWord, a += kWord * kRows, b += kWord * kColumns) {
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) {
          sums[i][j] += a[2 * i] * b[2 * j] + a[2 * i + 1] * b[2 * j + 1];
        }
      }
    }
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) c[i * kColumns + j] = sums[i][j];
    }
    panel += call.a_panel;
    c += kRows * kColumns;
  }
}

}  // namespace

const Kernel& portable_int8_kernel() {
  static constexpr Kernel kernel = int8_pairs_kernel<kRows, kColumns>(multiply);
  return kernel;
}

}  // namespace ds::kernels::gemm
