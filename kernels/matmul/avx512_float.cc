// fp32 products with AVX-512: 14 x 32 sums in 28 registers.
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/avx512_words.h"
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

void store_float_avx512(const StoreCall& call) {
  const auto lower = first_lanes<__mmask16>(call.columns),
             upper = first_lanes<__mmask16>(call.columns - 16);
  const auto* bias = static_cast<const float*>(call.bias);
  __m512 bias0 = _mm512_setzero_ps(), bias1 = bias0;
  if (bias != nullptr) {
    bias0 = _mm512_maskz_loadu_ps(lower, bias);
    if (upper != 0) bias1 = _mm512_maskz_loadu_ps(upper, bias + 16);
  }
  const float* sums = call.sums;
  auto* c = static_cast<float*>(call.c);
  for (int64_t i = 0; i < call.rows; ++i, sums += call.sums_stride, c += call.c_stride) {
    // Sums of few columns may end behind them.
    __m512 v0 = _mm512_maskz_loadu_ps(lower, sums), v1 = _mm512_maskz_loadu_ps(upper, sums + 16);
    if (bias != nullptr) {
      v0 = _mm512_add_ps(v0, bias0);
      v1 = _mm512_add_ps(v1, bias1);
    }
    _mm512_mask_storeu_ps(c, lower, v0);
    if (upper != 0) _mm512_mask_storeu_ps(c + 16, upper, v1);
  }
}

const Kernel& avx512_float_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .depth = 384,
                                 .cache_bytes = kWideTaskBytes,
                                 .task_columns = kWideTaskColumns,
                                 .chunk = kAcrossChunk,
                                 .a = {pack_rows<kRows>, pack_columns<kRows>},
                                 .b = {pack_rows<kColumns>, pack_columns<kColumns>},
                                 .multiply = multiply_panels<FloatOp, kRows, 1>,
                                 .store_float = store_float_avx512};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
