// Chooses how a product is multiplied.
#include "kernels/matmul/matmul.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu.h"
#include "kernels/matmul/blocked.h"
#include "kernels/matmul/convert.h"
#include "kernels/matmul/direct.h"
#include "kernels/matmul/few_rows.h"
#include "kernels/matmul/kernel.h"
#include "kernels/matmul/types.h"

namespace ds::kernels {
namespace {

// The implementations, best first; the first that runs here and takes the type is used.
struct Implementation {
  MatmulPath path;
  const char* name;
  bool runs;
  std::optional<MatmulType> only;  // the one type that it multiplies; otherwise any
  const gemm::Kernel& kernel;
};

const auto& implementations() {
  static const CpuFeatures& cpu = cpu_features();
  static const Implementation list[] = {
      {MatmulPath::kAmxBFloat16, "amx_bf16", cpu.amx_bf16, MatmulType::kBFloat16,
       gemm::amx_bfloat16_kernel()},
      {MatmulPath::kAmxFloat32, "amx_fp32", cpu.amx_bf16, MatmulType::kFloat32,
       gemm::amx_float32_kernel()},
      {MatmulPath::kAvx512BFloat16, "avx512_bf16", cpu.avx512_bf16, MatmulType::kBFloat16,
       gemm::avx512_bfloat16_kernel()},
      {MatmulPath::kAvx512, "avx512", cpu.avx512, {}, gemm::avx512_float_kernel()},
      {MatmulPath::kAvx2, "avx2", cpu.avx2, {}, gemm::avx2_float_kernel()},
      {MatmulPath::kPortable, "portable", true, {}, gemm::portable_float_kernel()},
  };
  return list;
}

// Null when this CPU cannot run `path` for the type.
const Implementation* find(MatmulPath path, MatmulType type) {
  for (const Implementation& entry : implementations()) {
    const bool wanted = path == MatmulPath::kAuto || path == entry.path;
    if (wanted && entry.runs && entry.only.value_or(type) == type) {
      return &entry;
    }
  }
  return nullptr;
}

gemm::Operand operand(const Matmul& p, const MatmulInput& input, bool along_k,
                      const gemm::Kernel& kernel, const gemm::Packing& packing) {
  gemm::Operand result{.data = input.data,
                       .stride = input.stride,
                       .along_k = along_k,
                       .element_bytes = gemm::element_size(p.in),
                       .pack = along_k ? packing.pack_rows : packing.pack_columns};
  if (gemm::element_size(p.in) != kernel.element_bytes) result.widened = gemm::float_type(p.in);
  return result;
}

// What stores finished sums where nothing but a bias is added to them; null: gemm::finish_part.
auto plain_store(const Matmul& p, const gemm::Kernel& kernel) {
  const bool plain = p.alpha == 1 && !p.accumulate && !p.activation;
  const bool bias_alike = p.bias == nullptr || p.in == p.out;
  if (!plain || !bias_alike) return decltype(kernel.store_float){nullptr};
  if (p.out == MatmulType::kBFloat16) return kernel.store_bfloat16;
  return p.out == MatmulType::kFloat32 ? kernel.store_float : nullptr;
}

void multiply(const Matmul& p, const gemm::Kernel& kernel, ThreadPool& pool) {
  const int64_t size = gemm::element_size(p.out);
  const gemm::BlockedProduct product{.m = p.m,
                                     .n = p.n,
                                     .k = p.k,
                                     .a = operand(p, p.a, !p.a.transposed, kernel, kernel.a),
                                     .b = operand(p, p.b, p.b.transposed, kernel, kernel.b),
                                     .c = {p.c, p.c_stride, size},
                                     .pre = {p.pre, p.pre_stride, size}};
  const auto store = plain_store(p, kernel);
  gemm::multiply_blocked(kernel, product, pool, [&](const gemm::FinishedSums& part) {
    if (store != nullptr) {
      const auto* bias = static_cast<const std::byte*>(p.bias);
      return store(
          {.sums = part.sums,
           .sums_stride = part.stride,
           .bias = bias != nullptr ? bias + part.column * size : nullptr,
           .c = static_cast<std::byte*>(p.c) + (part.row * p.c_stride + part.column) * size,
           .c_stride = p.c_stride,
           .rows = part.rows,
           .columns = part.columns});
    }
    gemm::finish_part(p, part.sums, part.stride, part.row, part.rows, part.column, part.columns);
  });
}

// k = 0.
void empty_sum(const Matmul& p) {
  constexpr int64_t kWidth = 64;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; j += kWidth) {
      float zeros[kWidth] = {};
      gemm::finish_part(p, zeros, kWidth, i, 1, j, std::min(kWidth, p.n - j));
    }
  }
}

}  // namespace

namespace gemm {

void finish_part(const Matmul& p, float* sums, int64_t stride, int64_t row, int64_t rows,
                 int64_t column, int64_t columns) {
  const auto at = [&](void* base, int64_t row_stride) -> void* {
    if (base == nullptr) return nullptr;
    return static_cast<std::byte*>(base) + (row * row_stride + column) * element_size(p.out);
  };
  const auto* bias = static_cast<const std::byte*>(p.bias);
  finish_block({.sums = sums,
                .sums_stride = stride,
                .alpha = p.alpha,
                .bias_type = float_type(p.in),
                .bias = bias != nullptr ? bias + column * element_size(p.in) : nullptr,
                .accumulate = p.accumulate,
                .activation = p.activation,
                .c_type = float_type(p.out),
                .c = at(p.c, p.c_stride),
                .c_stride = p.c_stride,
                .pre = at(p.pre, p.pre_stride),
                .pre_stride = p.pre_stride,
                .rows = rows,
                .columns = columns});
}

}  // namespace gemm

void matmul(const Matmul& p, ThreadPool& pool, MatmulPath path) {
  if (p.m <= 0 || p.n <= 0) return;
  if (p.k <= 0) return empty_sum(p);
  if (path == MatmulPath::kDirect || (path == MatmulPath::kAuto && p.m <= kDirectRows)) {
    return gemm::multiply_direct(p, pool);
  }
  const bool along_k = !p.a.transposed && p.b.transposed;
  if (path == MatmulPath::kFewRows) {
    DS_CHECK(along_k, Code::kInternal, "matrix product: operands do not lie along k");
    return gemm::multiply_few_rows(p, pool);
  }
  const Implementation* implementation = find(path, p.in);
  DS_CHECK(implementation != nullptr, Code::kInternal, "matrix product: path ",
           static_cast<int>(path), " does not run on this CPU for this type");
  const bool may_choose = path == MatmulPath::kAuto && p.any_order && along_k;
  if (may_choose && p.m <= implementation->kernel.few_rows) {
    return gemm::multiply_few_rows(p, pool);
  }
  multiply(p, implementation->kernel, pool);
}

bool matmul_path_runs(MatmulPath path, MatmulType type) {
  return path == MatmulPath::kDirect || path == MatmulPath::kFewRows || find(path, type) != nullptr;
}

int64_t matmul_dot_rows(MatmulType type) { return find(MatmulPath::kAuto, type)->kernel.few_rows; }

const char* matmul_kernel_name(MatmulType type) { return find(MatmulPath::kAuto, type)->name; }

}  // namespace ds::kernels
