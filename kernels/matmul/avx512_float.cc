// fp32 products with AVX-512: 14 x 32 sums in 28 registers.
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/matmul/kernel.h"
#include "kernels/matmul/pack_avx512.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl")
namespace ds::kernels::gemm {
namespace {

#include "kernels/matmul/register_tile-inl.h"

struct FloatOp {
  using Vector = __m512;
  static constexpr int64_t kLanes = 16;
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
  static Vector load_words(const uint32_t* p) { return _mm512_loadu_ps(p); }
  static Vector broadcast(const uint32_t* p) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(p));
  }
  static Vector multiply_add(Vector sum, Vector a, Vector b) { return _mm512_fmadd_ps(a, b, sum); }
};

constexpr int64_t kRows = 14, kColumns = 32;

template <int64_t kPanel>
void pack_rows(const PackCall& call) {
  transpose_words_avx512({.from = call.from,
                          .stride_bytes = call.stride * 4,
                          .width = call.width,
                          .bytes = call.depth * 4,
                          .panel_width = kPanel,
                          .words = call.depth,
                          .to = call.to});
}
template <int64_t kPanel>
void pack_columns(const PackCall& call) {
  copy_floats_avx512(call, kPanel);
}

}  // namespace

const Kernel& avx512_float_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .depth = 384,
                                 .cache_bytes = kWideTaskBytes,
                                 .task_columns = kWideTaskColumns,
                                 .chunk = kAcrossChunk,
                                 .a = {pack_rows<kRows>, pack_columns<kRows>},
                                 .b = {pack_rows<kColumns>, pack_columns<kColumns>},
                                 .multiply = multiply_panels<FloatOp, kRows, 1>};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
