// int8 products with AVX2: 6 x 16 sums in 12 registers, of values widened to 16 bits while they are
// packed. A product of two pairs and its sum are exact in 32 bits.
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/matmul/int8_kernel.h"
#include "kernels/matmul/int8_pairs.h"

HWY_PUSH_ATTRIBUTES("avx2,fma")
namespace ds::kernels::gemm {
namespace {

#include "kernels/matmul/register_tile-inl.h"

struct PairOp {
  using Vector = __m256i;
  using Sum = int32_t;
  static constexpr int64_t kLanes = 8;
  static Vector zero() { return _mm256_setzero_si256(); }
  static Vector load(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void store(int32_t* p, Vector v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static Vector load_words(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Vector broadcast(const uint32_t* p) { return _mm256_set1_epi32(static_cast<int>(*p)); }
  static Vector multiply_add(Vector sum, Vector a, Vector b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }
};

constexpr int64_t kRows = 6, kColumns = 16, kWord = 2;

}  // namespace

const Kernel& avx2_int8_kernel() {
  static constexpr Kernel kernel =
      int8_pairs_kernel<kRows, kColumns>(multiply_panels<PairOp, kRows, kWord>);
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
