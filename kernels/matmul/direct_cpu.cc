// Vector code of direct.h.
#include "kernels/matmul/direct.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/float_type.h"
#include "kernels/matmul/convert.h"
#include "kernels/matmul/scratch.h"
#include "kernels/matmul/types.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/direct_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

#ifndef DS_KERNELS_MATMUL_DIRECT_CALL_
#define DS_KERNELS_MATMUL_DIRECT_CALL_
namespace ds::kernels::gemm {

// sums[i, j] of `rows` rows of A (fp32, dense) and `columns` columns of B.
struct DirectCall {
  FloatType type;
  const float* a;
  int64_t rows, k;
  const void* b;
  int64_t b_stride;
  bool b_transposed;
  int64_t columns;
  float* sums;
  int64_t sums_stride;
};

inline constexpr int64_t kDirectGroup = 4;  // rows of A that one reading of B serves

}  // namespace ds::kernels::gemm
#endif

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using gemm::DirectCall;

// Columns of B are dense in memory: kColumns dot products with each of kRows rows at a time.
template <int kRows, int kColumns, class T>
void dot_columns(const DirectCall& call, int64_t column) {
  const simd::DF d;
  const T* b = static_cast<const T*>(call.b) + column * call.b_stride;
  simd::VF s[kRows * kColumns];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kColumns; ++i) s[i] = hn::Zero(d);
  simd::for_vectors(call.k, [&](int64_t k, auto count) DS_SIMD_BODY {
    simd::VF a[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) a[i] = simd::load_n(d, call.a + i * call.k + k, count);
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      const simd::VF w = simd::load_n(d, b + j * call.b_stride + k, count);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        s[i * kColumns + j] = hn::MulAdd(a[i], w, s[i * kColumns + j]);
      }
    }
  });
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      call.sums[i * call.sums_stride + column + j] = simd::sum_of_lanes(d, s[i * kColumns + j]);
    }
  }
}

template <int kRows, class T>
void dot_rows(const DirectCall& call) {
  constexpr int kColumns = kRows <= 2 ? 4 : 2;  // within sixteen registers
  int64_t j = 0;
  for (; j + kColumns <= call.columns; j += kColumns) dot_columns<kRows, kColumns, T>(call, j);
  for (; j < call.columns; ++j) dot_columns<kRows, 1, T>(call, j);
}

// Rows of B are dense: four of them at a time are added to the sums, which stay in the first-level
// cache.
template <int kRows, class T>
void add_rows(const DirectCall& call) {
  const simd::DF d;
  const T* b = static_cast<const T*>(call.b);
  for (int i = 0; i < kRows; ++i) {
    std::fill(call.sums + i * call.sums_stride, call.sums + i * call.sums_stride + call.columns,
              0.0f);
  }
  const auto add = [&](int64_t k, auto steps) DS_SIMD_BODY {
    constexpr int kSteps = decltype(steps)::value;
    const T* row = b + k * call.b_stride;
    const float* a = call.a + k;
    simd::for_vectors(call.columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      simd::VF w[kSteps];
#pragma GCC unroll 4
      for (int l = 0; l < kSteps; ++l) w[l] = simd::load_n(d, row + l * call.b_stride + j, count);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        float* target = call.sums + i * call.sums_stride + j;
        simd::VF s = simd::load_n(d, target, count);
#pragma GCC unroll 4
        for (int l = 0; l < kSteps; ++l) s = hn::MulAdd(hn::Set(d, a[i * call.k + l]), w[l], s);
        simd::store_n(s, d, target, count);
      }
    });
  };
  int64_t k = 0;
  for (; k + 4 <= call.k; k += 4) add(k, std::integral_constant<int, 4>());
  for (; k < call.k; ++k) add(k, std::integral_constant<int, 1>());
}

template <int kRows>
void multiply_rows(const DirectCall& call) {
  with_float_type(call.type, [&](auto t) {
    using T = decltype(t);
    call.b_transposed ? dot_rows<kRows, T>(call) : add_rows<kRows, T>(call);
  });
}

void direct(const DirectCall& call) {
  switch (call.rows) {
    case 1:
      return multiply_rows<1>(call);
    case 2:
      return multiply_rows<2>(call);
    case 3:
      return multiply_rows<3>(call);
    default:
      return multiply_rows<4>(call);
  }
}

// to[i, k] = fp32 of A.
template <class T>
void copy_rows(const T* from, int64_t stride_i, int64_t stride_k, int64_t rows, int64_t k,
               float* to) {
  const simd::DF d;
  for (int64_t i = 0; i < rows; ++i, from += stride_i, to += k) {
    if (stride_k == 1) {
      simd::for_vectors(k, [&](int64_t at, auto count) DS_SIMD_BODY {
        simd::store_n(simd::load_n(d, from + at, count), d, to + at, count);
      });
    } else {
      for (int64_t at = 0; at < k; ++at) to[at] = to_float(from[at * stride_k]);
    }
  }
}
void copy_a(FloatType type, const void* from, int64_t stride_i, int64_t stride_k, int64_t rows,
            int64_t k, float* to) {
  with_float_type(type, [&](auto t) {
    copy_rows(static_cast<const decltype(t)*>(from), stride_i, stride_k, rows, k, to);
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {

HWY_EXPORT(direct);
HWY_EXPORT(copy_a);

namespace gemm {

void multiply_direct(const Matmul& p, ThreadPool& pool) {
  static thread_local Scratch scratch;
  constexpr int64_t kMostColumns = 256, kPieces = 8;
  const FloatType type = float_type(p.in);
  const int64_t size = element_size(p.in);
  const int64_t share = (p.n / kPieces + 63) / 64 * 64;
  const int64_t chunk = std::clamp<int64_t>(share, 64, kMostColumns);
  float* const a = scratch.get<float>(kDirectGroup * p.k);
  for (int64_t row = 0; row < p.m; row += kDirectGroup) {
    const int64_t rows = std::min(kDirectGroup, p.m - row);
    const int64_t stride_i = p.a.transposed ? 1 : p.a.stride;
    const int64_t stride_k = p.a.transposed ? p.a.stride : 1;
    HWY_DYNAMIC_DISPATCH(copy_a)
    (type, static_cast<const std::byte*>(p.a.data) + row * stride_i * size, stride_i, stride_k,
     rows, p.k, a);
    pool.for_range(p.n, chunk, [&](int64_t begin, int64_t end) {
      alignas(64) float sums[kDirectGroup * kMostColumns];
      const int64_t first = begin * (p.b.transposed ? p.b.stride : 1);
      HWY_DYNAMIC_DISPATCH(direct)
      ({.type = type,
        .a = a,
        .rows = rows,
        .k = p.k,
        .b = static_cast<const std::byte*>(p.b.data) + first * size,
        .b_stride = p.b.stride,
        .b_transposed = p.b.transposed,
        .columns = end - begin,
        .sums = sums,
        .sums_stride = kMostColumns});
      finish_part(p, sums, kMostColumns, row, rows, begin, end - begin);
    });
  }
}

}  // namespace gemm
}  // namespace ds::kernels
#endif  // HWY_ONCE
