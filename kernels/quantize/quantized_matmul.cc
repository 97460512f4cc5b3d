#include "kernels/quantize/quantized_matmul.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/cpu.h"
#include "kernels/gemv/chunks.h"
#include "kernels/matmul/blocked.h"
#include "kernels/matmul/convert.h"
#include "kernels/quantize/code_kernel.h"

namespace ds::kernels {
namespace {

constexpr int64_t kLine = 64;              // bytes
constexpr int64_t kLeastChunk = 64 << 10;  // of codes: the shortest that is worth a thread's while

// Elements that share a scale of x, within groups of w; 0 where such pieces do not fit them. The
// longest whose zeros beyond k cost less than the scaling that they spare.
int64_t piece_of(const QuantizedShape& w) {
  if (w.k <= 0) return 0;
  for (const int64_t piece : kCodePieces) {
    const int64_t zeros = (piece - w.k % piece) % piece;
    if (piece > 64 && zeros > w.k / 8) continue;
    if (w.groups() == 1 || w.group % piece == 0) return piece;
  }
  return 0;
}

// Of those that this CPU runs. AVX-512 without VNNI, whose fp32 does as many products in a cycle as
// AVX2's pairs, is left with floating point; that choice has not been timed.
CodePath choose() {
  static const CpuFeatures& cpu = cpu_features();
  if (cpu.amx_int8) return CodePath::kAmx;
  if (cpu.avx512_vnni) return CodePath::kVnni;
  return cpu.avx2 && !cpu.avx512 ? CodePath::kAvx2 : CodePath::kAuto;
}

// Null where there is none.
const CodeKernel* find(const QuantizedShape& w, CodePath path) {
  const int64_t piece = piece_of(w);
  if (piece == 0) return nullptr;
  const CpuFeatures& cpu = cpu_features();
  switch (path == CodePath::kAuto ? choose() : path) {
    case CodePath::kAmx:
      return cpu.amx_int8 ? &amx_code_kernel(piece, w.minima) : nullptr;
    case CodePath::kVnni:
      return cpu.avx512_vnni ? &vnni_code_kernel(piece, w.minima) : nullptr;
    case CodePath::kAvx2:
      return cpu.avx2 ? &avx2_code_kernel(w.bits, piece, w.minima) : nullptr;
    case CodePath::kAuto:
      break;
  }
  return nullptr;
}

int64_t element_size(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

// What lies in a call's scratch.
struct ScratchParts {
  RowCodes rows;
  std::byte* panels = nullptr;  // the rows as the kernel reads them; null where they are few
  int64_t panel = 0;            // bytes of each
  int64_t bytes = 0;            // of all
};

ScratchParts make_scratch(const CodeKernel& kernel, const QuantizedShape& w, int64_t m,
                          std::byte* memory) {
  ScratchParts parts;
  const auto take = [&](int64_t bytes) {
    std::byte* const at = memory == nullptr ? nullptr : memory + parts.bytes;
    parts.bytes += (bytes + kLine - 1) / kLine * kLine;
    return at;
  };
  RowCodes& rows = parts.rows;
  rows = {.rows = m,
          .pieces = (w.k + kernel.piece - 1) / kernel.piece,
          .piece = kernel.piece,
          .excess = w.bits == 8 ? kernel.excess_of_8
                    : w.minima  ? 0
                                : kernel.excess_of_4};
  const int64_t k = rows.pieces * rows.piece;
  rows.codes = reinterpret_cast<int8_t*>(take(m * k));
  rows.scales = reinterpret_cast<float*>(take(m * rows.pieces * int64_t{sizeof(float)}));
  rows.sums = reinterpret_cast<int32_t*>(take(m * rows.pieces * int64_t{sizeof(int32_t)}));
  if (m <= kernel.few_rows) return parts;
  const gemm::Kernel& product = kernel.product;
  parts.panel = gemm::packed_bytes(product, k) * product.rows;
  parts.panels = take((m + product.rows - 1) / product.rows * parts.panel);
  return parts;
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

// Panels of w as they lie, in chunks as gemv.h has them.
void multiply_few(const CodeKernel& kernel, const QuantizedMatmul& call, const RowCodes& rows,
                  ThreadPool& pool) {
  const QuantizedMatrix& w = call.w;
  const int64_t chunk = gemv_chunk_bytes(w.code_bytes(), pool.threads(), kLeastChunk);
  const int64_t grain = std::max<int64_t>(1, chunk / std::max<int64_t>(1, w.panel_bytes()));
  const gemm::DepthCut cut = gemm::cut_depth(kernel.product, rows.pieces * rows.piece);
  pool.for_range(w.panels(), grain, [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kMostFewCodeRows * kPanelRows];
    for (int64_t panel = begin; panel < end; ++panel) {
      kernel.multiply_few({.rows = &rows, .w = &w, .cut = cut, .panel = panel, .sums = sums});
      const int64_t column = panel * kPanelRows;
      finish(call, {.sums = sums,
                    .stride = kPanelRows,
                    .row = 0,
                    .rows = call.m,
                    .column = column,
                    .columns = std::min(kPanelRows, w.n - column)});
    }
  });
}

}  // namespace

bool quantized_matmul_runs(const QuantizedShape& w, CodePath path) {
  return find(w, path) != nullptr;
}

int64_t quantized_matmul_scratch(const QuantizedShape& w, int64_t m, CodePath path) {
  const CodeKernel* const kernel = find(w, path);
  return kernel == nullptr ? 0 : make_scratch(*kernel, w, m, nullptr).bytes;
}

void quantized_matmul(const QuantizedMatmul& call, ThreadPool& pool, CodePath path) {
  if (call.m <= 0 || call.w.n <= 0) return;
  const CodeKernel* const kernel = find(call.w, path);
  DS_CHECK(kernel != nullptr, Code::kInternal, "product of codes: this CPU has none for groups of ",
           call.w.group);
  const ScratchParts parts =
      make_scratch(*kernel, call.w, call.m, static_cast<std::byte*>(call.scratch));
  const RowCodes& rows = parts.rows;
  const gemm::Kernel& product = kernel->product;
  const int64_t k = rows.pieces * rows.piece;
  // Each panel is packed once, by the thread that encoded it.
  pool.for_range(call.m, product.rows, [&](int64_t begin, int64_t end) {
    encode_rows(call.type, call.x, call.w.k, rows, begin, end);
    if (parts.panels == nullptr) return;
    product.a.pack_rows({.from = &rows,
                         .width = end - begin,
                         .depth = k,
                         .to = parts.panels + begin / product.rows * parts.panel,
                         .index = begin});
  });
  if (parts.panels == nullptr) return multiply_few(*kernel, call, rows, pool);
  // element_bytes 0: packing finds its part by index and k.
  const gemm::BlockedProduct problem{
      .m = call.m,
      .n = call.w.n,
      .k = k,
      .a = {.data = parts.panels, .element_bytes = 0, .packed_panel = parts.panel},
      .b = {.data = &call.w, .element_bytes = 0, .pack = product.b.pack_rows},
      .c = {call.y, call.w.n, element_size(call.out)}};
  gemm::multiply_blocked(product, problem, pool,
                         [&](const gemm::FinishedSums& part) { finish(call, part); });
}

}  // namespace ds::kernels
