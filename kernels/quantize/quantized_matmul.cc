#include "kernels/quantize/quantized_matmul.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu.h"
#include "kernels/matmul/blocked.h"
#include "kernels/matmul/convert.h"
#include "kernels/quantize/code_kernel.h"

namespace ds::kernels {
namespace {

constexpr int64_t kLine = 64;  // bytes

// Null where there is none. AMX multiplies bf16 faster than integers whose sums are scaled every
// few steps.
const CodeKernel* find(const QuantizedShape& w) {
  static const CpuFeatures& cpu = cpu_features();
  if (!cpu.avx512_vnni || cpu.amx_bf16 || w.k <= 0) return nullptr;
  const bool whole = w.groups() == 1;
  if (whole || w.group % 64 == 0) return &vnni_code_kernel(64, w.minima);
  return w.group % 32 == 0 ? &vnni_code_kernel(32, w.minima) : nullptr;
}

int64_t element_size(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

CodedRows coded_rows(const CodeKernel& kernel, const QuantizedShape& w, int64_t m, void* memory) {
  CodedRows rows{.rows = m,
                 .pieces = (w.k + kernel.piece - 1) / kernel.piece,
                 .excess = w.bits == 8 ? 128
                           : w.minima  ? 0
                                       : 8};
  rows.codes = static_cast<int8_t*>(memory);
  rows.scales = reinterpret_cast<float*>(rows.codes + m * rows.pieces * kernel.piece);
  rows.sums = reinterpret_cast<int32_t*>(rows.scales + m * rows.pieces);
  return rows;
}

void finish(const QuantizedMatmul& call, const gemm::FinishedSums& part) {
  const auto* bias = static_cast<const std::byte*>(call.bias);
  if (bias != nullptr) bias += part.column * element_size(call.type);
  void* const y = static_cast<std::byte*>(call.y) +
                  (part.row * call.w.n + part.column) * element_size(call.out);
  if (call.out == FloatType::kBFloat16 && cpu_features().avx512_bf16) {
    return gemm::store_bfloat16_avx512({.sums = part.sums,
                                        .sums_stride = part.stride,
                                        .bias = bias,
                                        .c = y,
                                        .c_stride = call.w.n,
                                        .rows = part.rows,
                                        .columns = part.columns});
  }
  gemm::finish_block({.sums = part.sums,
                      .sums_stride = part.stride,
                      .bias_type = call.type,
                      .bias = bias,
                      .activation = {},
                      .c_type = call.out,
                      .c = y,
                      .c_stride = call.w.n,
                      .rows = part.rows,
                      .columns = part.columns});
}

}  // namespace

bool quantized_matmul_runs(const QuantizedShape& w) { return find(w) != nullptr; }

int64_t quantized_matmul_scratch(const QuantizedShape& w, int64_t m) {
  const CodeKernel* const kernel = find(w);
  if (kernel == nullptr) return 0;
  const int64_t pieces = (w.k + kernel->piece - 1) / kernel->piece;
  const int64_t bytes = m * pieces * (kernel->piece + int64_t{sizeof(float) + sizeof(int32_t)});
  return (bytes + kLine - 1) / kLine * kLine;
}

void quantized_matmul(const QuantizedMatmul& call, ThreadPool& pool) {
  if (call.m <= 0 || call.w.n <= 0) return;
  const CodeKernel* const kernel = find(call.w);
  DS_CHECK(kernel != nullptr, Code::kInternal, "product of codes: this CPU has none for groups of ",
           call.w.group);
  constexpr int64_t kRows = 16;
  const CodedRows rows = coded_rows(*kernel, call.w, call.m, call.scratch);
  pool.for_range(call.m, kRows, [&](int64_t begin, int64_t end) {
    kernel->encode(call.type, call.x, call.w.k, rows, begin, end);
  });
  // element_bytes 0: packing finds its part by index and k.
  const gemm::Kernel& product = kernel->product;
  const gemm::BlockedProduct problem{
      .m = call.m,
      .n = call.w.n,
      .k = rows.pieces * kernel->piece,
      .a = {.data = &rows, .element_bytes = 0, .pack = product.a.pack_rows},
      .b = {.data = &call.w, .element_bytes = 0, .pack = product.b.pack_rows}};
  gemm::multiply_blocked(product, problem, pool,
                         [&](const gemm::FinishedSums& part) { finish(call, part); });
}

}  // namespace ds::kernels
