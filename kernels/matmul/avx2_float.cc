// fp32 products with AVX2: 6 x 16 sums in 12 registers.
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/matmul/kernel.h"

HWY_PUSH_ATTRIBUTES("avx2,fma")
namespace ds::kernels::gemm {
namespace {

#include "kernels/matmul/register_tile-inl.h"

struct FloatOp {
  using Vector = __m256;
  using Sum = float;
  static constexpr int64_t kLanes = 8;
  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
  static Vector load_words(const uint32_t* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static Vector broadcast(const uint32_t* p) {
    return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
  }
  static Vector multiply_add(Vector sum, Vector a, Vector b) { return _mm256_fmadd_ps(a, b, sum); }
};

constexpr int64_t kRows = 6, kColumns = 16;

// Four words of four rows to four words of each of four steps of k.
void transpose_4x4(const float* from, int64_t stride, float* to, int64_t to_stride) {
  __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + stride);
  __m128 r2 = _mm_loadu_ps(from + 2 * stride), r3 = _mm_loadu_ps(from + 3 * stride);
  _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
  _mm_storeu_ps(to, r0);
  _mm_storeu_ps(to + to_stride, r1);
  _mm_storeu_ps(to + 2 * to_stride, r2);
  _mm_storeu_ps(to + 3 * to_stride, r3);
}

template <int64_t kPanel>
void pack_rows(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  auto* to = static_cast<float*>(call.to);
  int64_t i = 0;
  for (; i + 4 <= call.width; i += 4) {
    const float* row = from + i * call.stride;
    int64_t k = 0;
    for (; k + 4 <= call.depth; k += 4) {
      transpose_4x4(row + k, call.stride, to + k * kPanel + i, kPanel);
    }
    for (; k < call.depth; ++k) {
      for (int64_t r = 0; r < 4; ++r) to[k * kPanel + i + r] = row[r * call.stride + k];
    }
  }
  for (; i < kPanel; ++i) {
    for (int64_t k = 0; k < call.depth; ++k) {
      to[k * kPanel + i] = i < call.width ? from[i * call.stride + k] : 0.0f;
    }
  }
}

template <int64_t kPanel>
void pack_columns(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  auto* to = static_cast<float*>(call.to);
  for (int64_t k = 0; k < call.depth; ++k, from += call.stride, to += kPanel) {
    if (call.width == kPanel) {
      for (int64_t i = 0; i < kPanel; ++i) to[i] = from[i];
    } else {
      for (int64_t i = 0; i < kPanel; ++i) to[i] = i < call.width ? from[i] : 0.0f;
    }
  }
}

}  // namespace

const Kernel& avx2_float_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .depth = 384,
                                 .a = {pack_rows<kRows>, pack_columns<kRows>},
                                 .b = {pack_rows<kColumns>, pack_columns<kColumns>},
                                 .multiply = multiply_panels<FloatOp, kRows, 1>};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
