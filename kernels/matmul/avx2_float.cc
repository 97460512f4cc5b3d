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

#include "kernels/avx2_transpose-inl.h"
#include "kernels/matmul/register_tile-inl.h"

struct FloatOp {
  using Vector = __m256;
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
// More than a second-level cache holds: a panel of B is read once for 126 rows of A, for which the
// third level is fast enough, and the fewer columns a task has the more often A is packed.
constexpr int64_t kCacheBytes = 1536 << 10;

// Eight rows of a panel at most, from row `first` on. Where the panel has fewer, what is stored
// beyond a step of k is written over by the next step, so that the last ones are stored apart.
template <int64_t kPanel, int64_t kFirst>
void pack_some_rows(const PackCall& call) {
  constexpr int64_t kSome = kPanel - kFirst < 8 ? kPanel - kFirst : 8;
  const int64_t there = call.width - kFirst;
  const auto* from = static_cast<const float*>(call.from) + kFirst * call.stride;
  auto* to = static_cast<float*>(call.to) + kFirst;
  const int64_t whole = (call.depth - (kSome < 8 ? 1 : 0)) / 8 * 8;
  for (int64_t k = 0; k < whole; k += 8) {
    __m256 r[8];
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) {
      r[i] = i < kSome && i < there ? _mm256_loadu_ps(from + i * call.stride + k)
                                    : _mm256_setzero_ps();
    }
    transpose_8x8(r);
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) _mm256_storeu_ps(to + (k + i) * kPanel, r[i]);
  }
  for (int64_t k = whole; k < call.depth; ++k) {
    for (int64_t i = 0; i < kSome; ++i) {
      to[k * kPanel + i] = i < there ? from[i * call.stride + k] : 0.0f;
    }
  }
}

template <int64_t kPanel>
void pack_rows(const PackCall& call) {
  pack_some_rows<kPanel, 0>(call);
  if constexpr (kPanel > 8) pack_some_rows<kPanel, 8>(call);
}

// The first n of eight lanes; any n.
__m256i first_lanes(int64_t n) {
  const auto count = static_cast<int>(n < 0 ? 0 : n > 8 ? 8 : n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Pieces of rows are too short for the processor to see a stream, so those that the next chunk
// begins with are fetched; they may lie behind the end.
constexpr int64_t kChunk = 16;

template <int64_t kPanel>
void pack_columns(const PackCall& call) {
  const auto* from = static_cast<const float*>(call.from);
  auto* to = static_cast<float*>(call.to);
  const __m256i low = first_lanes(call.width), high = first_lanes(call.width - 8);
  for (int64_t k = 0; k < call.depth; ++k, from += call.stride, to += kPanel) {
    _mm_prefetch(reinterpret_cast<const char*>(from + kChunk * call.stride), _MM_HINT_T0);
    const __m256 first = _mm256_maskload_ps(from, low);
    if constexpr (kPanel > 8) {
      _mm256_storeu_ps(to, first);
      _mm256_storeu_ps(to + 8, _mm256_maskload_ps(from + 8, high));
    } else if (k + 1 < call.depth) {
      _mm256_storeu_ps(to, first);  // what is beyond the panel is written over next
    } else {
      _mm256_maskstore_ps(to, first_lanes(kPanel), first);
    }
  }
}

}  // namespace

const Kernel& avx2_float_kernel() {
  static constexpr Kernel kernel{.rows = kRows,
                                 .columns = kColumns,
                                 .depth = 384,
                                 .cache_bytes = kCacheBytes,
                                 .cache_bytes_of_few_rows = 384 << 10,
                                 .chunk = kChunk,
                                 .few_rows = 96,
                                 .a = {pack_rows<kRows>, pack_columns<kRows>},
                                 .b = {pack_rows<kColumns>, pack_columns<kColumns>},
                                 .multiply = multiply_panels<FloatOp, kRows, 1>};
  return kernel;
}

}  // namespace ds::kernels::gemm
HWY_POP_ATTRIBUTES
