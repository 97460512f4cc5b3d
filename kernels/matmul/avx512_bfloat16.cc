// bf16 products with AVX512-BF16's dot products of pairs: 14 x 32 sums in 28 registers.
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/matmul/kernel.h"
#include "kernels/matmul/pack_avx512.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace ds::kernels::gemm {
namespace {

#include "kernels/matmul/register_tile-inl.h"

struct PairOp {
  using Vector = __m512;
  static constexpr int64_t kLanes = 16;
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
  static Vector load_words(const uint32_t* p) { return _mm512_loadu_ps(p); }
  static Vector broadcast(const uint32_t* p) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*p)));
  }
  static Vector multiply_add(Vector sum, Vector a, Vector b) {
    // A cast of the compiler's, not of the value: the instruction takes any register.
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

constexpr int64_t kRows = 14, kColumns = 32, kWord = 2;

int64_t words(int64_t depth) { return (depth + 1) / kWord; }

template <int64_t kPanel>
void pack_rows(const PackCall& call) {
  transpose_words_avx512({.from = call.from,
                          .stride_bytes = call.stride * 2,
                          .width = call.width,
                          .bytes = call.depth * 2,
                          .panel_width = kPanel,
                          .words = words(call.depth),
                          .to = call.to});
}
template <int64_t kPanel>
void pack_columns(const PackCall& call) {
  interleave_pairs_avx512(call, kPanel, words(call.depth));
}

// Sixteen bf16 as floats, the first n of them.
__m512 load_bias(const uint16_t* p, __mmask16 first) {
  const __m512i words = _mm512_maskz_cvtepu16_epi32(first, _mm256_maskz_loadu_epi16(first, p));
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(first, words, 16));
}

}  // namespace

// The instruction takes numbers below 2^-126 for zero; nothing else differs from to_bfloat16.
void store_bfloat16_avx512(const StoreCall& call) {
  const auto columns = static_cast<unsigned>(call.columns);
  const __mmask32 all = columns >= 32 ? ~__mmask32{0} : (__mmask32{1} << columns) - 1;
  const auto lower = static_cast<__mmask16>(all), upper = static_cast<__mmask16>(all >> 16);
  __m512 bias0 = _mm512_setzero_ps(), bias1 = bias0;
  if (call.bias != nullptr) {
    const auto* bias = static_cast<const uint16_t*>(call.bias);
    bias0 = load_bias(bias, lower);
    if (upper != 0) bias1 = load_bias(bias + 16, upper);
  }
  const float* sums = call.sums;
  auto* c = static_cast<uint16_t*>(call.c);
  for (int64_t i = 0; i < call.rows; ++i, sums += call.sums_stride, c += call.c_stride) {
    // Sums of few columns may end behind them.
    __m512 v0 = _mm512_maskz_loadu_ps(lower, sums), v1 = _mm512_maskz_loadu_ps(upper, sums + 16);
    if (call.bias != nullptr) {
      v0 = _mm512_add_ps(v0, bias0);
      v1 = _mm512_add_ps(v1, bias1);
    }
    _mm512_mask_storeu_epi16(c, all, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(v1, v0)));
  }
}

const Kernel& avx512_bfloat16_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .group = kWord,
                                 .depth = 512,
                                 .element_bytes = 2,
                                 .packed_bytes = 2,
                                 .cache_bytes = kWideTaskBytes,
                                 .task_columns = kWideTaskColumns,
                                 .chunk = kAcrossChunk,
                                 .a = {pack_rows<kRows>, pack_columns<kRows>},
                                 .b = {pack_rows<kColumns>, pack_columns<kColumns>},
                                 .multiply = multiply_panels<PairOp, kRows, kWord>,
                                 .store_bfloat16 = store_bfloat16_avx512,
                                 .store_float = store_float_avx512};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
