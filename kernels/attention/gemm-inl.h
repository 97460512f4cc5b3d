// Register-blocked products of small fp32 tiles: kRows broadcast rows times up to kVectors vectors.
// Included once per SIMD target.
//
// Functions as large as those of whole tiles are not inlined: their callers exist once per element
// type.
#if defined(DS_KERNELS_ATTENTION_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_ATTENTION_GEMM_INL_H_
#undef DS_KERNELS_ATTENTION_GEMM_INL_H_
#else
#define DS_KERNELS_ATTENTION_GEMM_INL_H_
#endif

#include <cstdint>

#include "kernels/attention/tiles.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using simd::DF;
using simd::VF;
inline constexpr int64_t kLanes = static_cast<int64_t>(HWY_LANES(float));
// A group of queries is kVectors vectors wide; with kRows rows of sums, one vector of each operand
// and a broadcast this fills 32 registers of AVX-512 or 16 of narrower sets.
inline constexpr int kVectors = 3;
inline constexpr int kRows = HWY_MAX_BYTES >= 64 ? 8 : 4;
inline constexpr int64_t kGroup = kVectors * kLanes;
static_assert(kQueryBlock % kGroup == 0 && kGroup <= kMaxGroup && kRowPad % kRows == 0);
static_assert(kDimPad % kLanes == 0);

// C[r][n] (+)= sum over k < depth of A(r, k) * B[k][n], n < Vectors * kLanes.
// A(r, k) is a[r * lda + k], or a[r + k * lda] when kTransposed. C rows and B rows are ldc, ldb
// apart. Each sum runs over k in order.
template <int kVecs, bool kTransposed, bool kAdd>
HWY_INLINE void multiply_block(int64_t depth, const float* HWY_RESTRICT a, int64_t lda,
                               const float* HWY_RESTRICT b, int64_t ldb, float* HWY_RESTRICT c,
                               int64_t ldc) {
  const DF f;
  VF sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) {
      sum[r][n] = kAdd ? hn::Load(f, c + r * ldc + n * kLanes) : hn::Zero(f);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    VF right[kVecs];
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) right[n] = hn::Load(f, b + k * ldb + n * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const VF left = hn::Set(f, kTransposed ? a[k * lda + r] : a[r * lda + k]);
#pragma GCC unroll 8
      for (int n = 0; n < kVecs; ++n) sum[r][n] = hn::MulAdd(left, right[n], sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) hn::Store(sum[r][n], f, c + r * ldc + n * kLanes);
  }
}

template <class T>
struct Strided {
  T* data;
  int64_t stride;  // between rows
};
template <bool kTransposed, bool kAdd>
HWY_INLINE void multiply(int vectors, int64_t depth, Strided<const float> a, Strided<const float> b,
                         Strided<float> c) {
  switch (vectors) {
    case 1:
      return multiply_block<1, kTransposed, kAdd>(depth, a.data, a.stride, b.data, b.stride, c.data,
                                                  c.stride);
    case 2:
      return multiply_block<2, kTransposed, kAdd>(depth, a.data, a.stride, b.data, b.stride, c.data,
                                                  c.stride);
    case 3:
      return multiply_block<3, kTransposed, kAdd>(depth, a.data, a.stride, b.data, b.stride, c.data,
                                                  c.stride);
    default:
      return;
  }
}

// What a group of queries sees of a tile of keys. Vector n of the group has used rows
// [0, rows[n]), a multiple of kRowPad that does not fall with n.
struct Visible {
  int vectors = 0;  // vectors that hold queries
  int64_t rows[kVectors] = {};

  int64_t most() const { return vectors == 0 ? 0 : rows[vectors - 1]; }
  int first_at(int64_t row) const {
    int n = 0;
    while (n < vectors && rows[n] <= row) ++n;
    return n;
  }
};

// scores[j][i] = sum over d of x[j][d] * yt[d][i]: rows are keys, lanes are queries.
HWY_NOINLINE inline void scores_tile(const Visible& see, int64_t dim, int64_t padded_dim,
                                     const float* x, const float* yt, float* scores) {
  for (int64_t row = 0; row < see.most(); row += kRows) {
    const int first = see.first_at(row);
    multiply<false, false>(see.vectors - first, dim, {x + row * padded_dim, padded_dim},
                           {yt + first * kLanes, kGroup},
                           {scores + row * kGroup + first * kLanes, kGroup});
  }
}

// sums[d][i] += sum over j of x[j][d] * scores[j][i].
HWY_NOINLINE inline void add_over_keys(const Visible& see, int64_t dim, int64_t padded_dim,
                                       const float* x, const float* scores, float* sums) {
  for (int64_t d = 0; d < dim; d += kRows) {
    int64_t from = 0;
    for (int n = 0; n < see.vectors; ++n) {
      const int64_t to = see.rows[n];
      if (to <= from) continue;
      multiply<true, true>(see.vectors - n, to - from, {x + from * padded_dim + d, padded_dim},
                           {scores + from * kGroup + n * kLanes, kGroup},
                           {sums + d * kGroup + n * kLanes, kGroup});
      from = to;
    }
  }
}

// sums[j][d] += sum over i < queries of scores[j][i] * y[i][d].
HWY_NOINLINE inline void add_over_queries(const Visible& see, int64_t queries, int64_t padded_dim,
                                          const float* scores, const float* y, float* sums) {
  for (int64_t row = 0; row < see.most(); row += kRows) {
    const int64_t from = see.first_at(row) * kLanes;
    for (int64_t d = 0; d < padded_dim;) {
      const int64_t left = (padded_dim - d) / kLanes;
      const int vectors = left == 4 ? 2 : left > kVectors ? kVectors : static_cast<int>(left);
      multiply<false, true>(vectors, queries - from, {scores + row * kGroup + from, kGroup},
                            {y + from * padded_dim + d, padded_dim},
                            {sums + row * padded_dim + d, padded_dim});
      d += vectors * kLanes;
    }
  }
}

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
