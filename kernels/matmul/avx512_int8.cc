// int8 products with AVX512-VNNI: 14 x 32 sums in 28 registers. Values are widened to 16 bits while
// they are packed: the instruction for 8 bits takes one operand unsigned, that for 16 does not.
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/matmul/int8_kernel.h"
#include "kernels/matmul/int8_pairs.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace ds::kernels::gemm {
namespace {

#include "kernels/matmul/register_tile-inl.h"

struct PairOp {
  using Vector = __m512i;
  using Sum = int32_t;
  static constexpr int64_t kLanes = 16;
  static Vector zero() { return _mm512_setzero_si512(); }
  static Vector load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static void store(int32_t* p, Vector v) { _mm512_storeu_si512(p, v); }
  static Vector load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static Vector broadcast(const uint32_t* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  static Vector multiply_add(Vector sum, Vector a, Vector b) {
    return _mm512_dpwssd_epi32(sum, a, b);
  }
};

constexpr int64_t kRows = 14, kColumns = 32, kWord = 2;

}  // namespace

const Kernel& avx512_int8_kernel() {
  static constexpr Kernel kernel =
      int8_pairs_kernel<kRows, kColumns>(multiply_panels<PairOp, kRows, kWord>);
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
