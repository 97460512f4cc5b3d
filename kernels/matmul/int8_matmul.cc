// Chooses how int8 products are multiplied.
#include "kernels/matmul/int8_matmul.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu.h"
#include "kernels/matmul/blocked.h"
#include "kernels/matmul/convert.h"
#include "kernels/matmul/int8_kernel.h"

namespace ds::kernels {
namespace {

struct Implementation {
  Int8Path path;
  bool runs;
  const gemm::Kernel& kernel;
};

const Implementation* find(Int8Path path) {
  static const CpuFeatures& cpu = cpu_features();
  static const Implementation list[] = {
      {Int8Path::kAmx, cpu.amx_int8, gemm::amx_int8_kernel()},
      {Int8Path::kAvx512Vnni, cpu.avx512_vnni, gemm::avx512_int8_kernel()},
      {Int8Path::kAvx2, cpu.avx2, gemm::avx2_int8_kernel()},
      {Int8Path::kPortable, true, gemm::portable_int8_kernel()},
  };
  for (const Implementation& entry : list) {
    if (entry.runs && (path == Int8Path::kAuto || path == entry.path)) return &entry;
  }
  return nullptr;
}

int64_t element_size(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

// Scales and stores part of C.
void finish(const Int8Matmul& p, const gemm::FinishedSums& part) {
  const int64_t size = element_size(p.out);
  gemm::scale_sums(part.sums, part.stride, part.rows, part.columns, p.a_scales + part.row,
                   p.b_scales + part.column);
  const auto* bias = static_cast<const std::byte*>(p.bias);
  gemm::finish_block(
      {.sums = part.sums,
       .sums_stride = part.stride,
       .bias_type = p.out,
       .bias = bias != nullptr ? bias + part.column * size : nullptr,
       .activation = {},
       .c_type = p.out,
       .c = static_cast<std::byte*>(p.c) + (part.row * p.c_stride + part.column) * size,
       .c_stride = p.c_stride,
       .rows = part.rows,
       .columns = part.columns});
}

}  // namespace

void int8_matmul(const Int8Matmul& p, ThreadPool& pool, Int8Path path) {
  if (p.m <= 0 || p.n <= 0) return;
  DS_CHECK(p.k <= kInt8LongestDepth, Code::kInvalidArgument, "int8 product: k = ", p.k,
           " is above ", kInt8LongestDepth, ", where 32-bit sums could overflow");
  const Implementation* implementation = find(path);
  DS_CHECK(implementation != nullptr, Code::kInternal, "int8 product: path ",
           static_cast<int>(path), " does not run on this CPU");
  if (p.k <= 0) {
    constexpr int64_t kWidth = 64;
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; j += kWidth) {
        float zeros[kWidth] = {};
        finish(p, {zeros, kWidth, i, 1, j, std::min(kWidth, p.n - j)});
      }
    }
    return;
  }
  const gemm::Kernel& kernel = implementation->kernel;
  const gemm::BlockedProduct product{
      .m = p.m,
      .n = p.n,
      .k = p.k,
      .a = {.data = p.a, .stride = p.a_stride, .element_bytes = 1, .pack = kernel.a.pack_rows},
      .b = {.data = p.b, .stride = p.b_stride, .element_bytes = 1, .pack = kernel.b.pack_rows}};
  gemm::multiply_blocked(kernel, product, pool,
                         [&](const gemm::FinishedSums& part) { finish(p, part); });
}

bool int8_path_runs(Int8Path path) { return find(path) != nullptr; }

}  // namespace ds::kernels
