// fp32 products in plain C++, for CPUs that none of the other kernels runs on.
#include <cstdint>

#include "kernels/matmul/kernel.h"

namespace ds::kernels::gemm {
namespace {

constexpr int64_t kRows = 4, kColumns = 8;

void multiply(const MultiplyCall& call) {
  const auto* panel = static_cast<const char*>(call.a);
  float* c = call.c;
  for (int64_t row = 0; row < call.rows; row += kRows) {
    float sums[kRows][kColumns] = {};
    if (!call.first) {
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) sums[i][j] = c[i * kColumns + j];
      }
    }
    const auto* a = reinterpret_cast<const float*>(panel);
    const auto* b = static_cast<const float*>(call.b);
    for (int64_t k = 0; k < call.depth; ++k, a += kRows, b += kColumns) {
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) c[i * kColumns + j] = sums[i][j];
    }
    panel += call.a_panel;
    c += kRows * kColumns;
  }
}

// Element (i, k) of the source lies at i * step_i + k * step_k.
template <int64_t kPanel>
void pack(const PackCall& call, int64_t step_i, int64_t step_k) {
  const auto* from = static_cast<const float*>(call.from);
  auto* to = static_cast<float*>(call.to);
  for (int64_t k = 0; k < call.depth; ++k, to += kPanel) {
    for (int64_t i = 0; i < kPanel; ++i) {
      to[i] = i < call.width ? from[i * step_i + k * step_k] : 0.0f;
    }
  }
}
template <int64_t kPanel>
void pack_rows(const PackCall& call) {
  pack<kPanel>(call, call.stride, 1);
}
template <int64_t kPanel>
void pack_columns(const PackCall& call) {
  pack<kPanel>(call, 1, call.stride);
}

}  // namespace

const Kernel& portable_float_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .depth = 256,
                                 .a = {pack_rows<kRows>, pack_columns<kRows>},
                                 .b = {pack_rows<kColumns>, pack_columns<kColumns>},
                                 .multiply = multiply};
  return kernel;
}

}  // namespace ds::kernels::gemm
