// Vector code of few_rows.h.
#include "kernels/matmul/few_rows.h"

#include <hwy/cache_control.h>

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/matmul/convert.h"
#include "kernels/matmul/direct.h"
#include "kernels/matmul/scratch.h"
#include "kernels/matmul/types.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/few_rows_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

#ifndef DS_KERNELS_MATMUL_FEW_ROWS_CALL_
#define DS_KERNELS_MATMUL_FEW_ROWS_CALL_
namespace ds::kernels::gemm {

inline constexpr int64_t kDotColumns = 6;  // of B that stay in the first-level cache

// sums[i, j] of all rows of A and at most kDotColumns columns of B over `depth` of k.
struct DotCall {
  const float* a;
  int64_t a_stride, rows;
  const float* b;
  int64_t b_stride, columns, depth;
  float* sums;
  int64_t sums_stride;
  bool first;  // sums are written, not added to
  // What the next call reads of B: `next_bytes` of each of its columns. Null: nothing to fetch.
  const std::byte* next;
  int64_t next_stride, next_bytes, next_columns;  // bytes
};

}  // namespace ds::kernels::gemm
#endif

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using gemm::DotCall;
using gemm::kDotColumns;
using simd::VF;

// Loads that several rows share are made once: the compiler would repeat them in each multiply-add,
// and two loads a cycle are what binds.
HWY_INLINE VF loaded(VF v) {
#if HWY_ARCH_X86_64 && HWY_COMPILER_GCC && HWY_TARGET <= HWY_AVX2
  asm("" : "+v"(v.raw));
#endif
  return v;
}

// Memory that is fetched beside the multiplication, so many bytes a step. Behind the end of what is
// wanted a step may name memory that is not there: fetching it does nothing.
struct Fetch {
  const std::byte* at;
  int64_t bytes;
};

template <int kRows, int kColumns>
HWY_INLINE void dot_tile(const DotCall& call, int64_t row, int64_t column, Fetch fetch) {
  const simd::DF d;
  const float* a = call.a + row * call.a_stride;
  const float* b = call.b + column * call.b_stride;
  VF s[kRows * kColumns];
#pragma GCC unroll 12
  for (int i = 0; i < kRows * kColumns; ++i) s[i] = hn::Zero(d);
  simd::for_vectors(call.depth, [&](int64_t k, auto count) DS_SIMD_BODY {
    hwy::Prefetch(fetch.at);
    fetch.at += fetch.bytes;
    VF x[kRows];
#pragma GCC unroll 2
    for (int i = 0; i < kRows; ++i) x[i] = simd::load_n(d, a + i * call.a_stride + k, count);
#pragma GCC unroll 6
    for (int j = 0; j < kColumns; ++j) {
      const VF w = loaded(simd::load_n(d, b + j * call.b_stride + k, count));
#pragma GCC unroll 2
      for (int i = 0; i < kRows; ++i)
        s[i * kColumns + j] = hn::MulAdd(x[i], w, s[i * kColumns + j]);
    }
  });
#pragma GCC unroll 2
  for (int i = 0; i < kRows; ++i) {
    float* const sums = call.sums + (row + i) * call.sums_stride + column;
#pragma GCC unroll 6
    for (int j = 0; j < kColumns; ++j) {
      const float sum = simd::sum_of_lanes(d, s[i * kColumns + j]);
      sums[j] = call.first ? sum : sums[j] + sum;
    }
  }
}

template <int kRows>
HWY_INLINE void dot_columns(const DotCall& call, int64_t row, const Fetch& fetch) {
  if (call.columns == kDotColumns) return dot_tile<kRows, kDotColumns>(call, row, 0, fetch);
  for (int64_t j = 0; j < call.columns; ++j) dot_tile<kRows, 1>(call, row, j, {call.next, 0});
}

// The part of the next columns of B that is fetched while tile `tile` of `tiles` is multiplied: one
// after the other takes a part of one column, so that all of them are there when they are needed
// and memory works meanwhile.
Fetch fetch_of(const DotCall& call, int64_t tile, int64_t tiles) {
  if (call.next == nullptr || tiles < call.next_columns) return {nullptr, 0};
  const int64_t parts = tiles / call.next_columns, column = tile / parts;
  if (column >= call.next_columns) return {nullptr, 0};
  const int64_t bytes = (call.next_bytes + parts - 1) / parts;
  const int64_t steps = (call.depth + simd::lanes() - 1) / simd::lanes();
  return {call.next + column * call.next_stride + tile % parts * bytes,
          (bytes + steps - 1) / steps};
}

void dots(const DotCall& call) {
  constexpr int64_t kRows = 2;
  const int64_t tiles = (call.rows + kRows - 1) / kRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const Fetch fetch = fetch_of(call, tile, tiles);
    if (tile * kRows + kRows <= call.rows) {
      dot_columns<kRows>(call, tile * kRows, fetch);
    } else {
      dot_columns<1>(call, tile * kRows, fetch);
    }
  }
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {

HWY_EXPORT(dots);

namespace gemm {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The product as its tasks see it. Rows of A are fp32, block by block of k: [blocks, m, depth].
struct FewRows {
  const Matmul& problem;
  FloatType type;
  int64_t size;   // bytes of an element of B
  int64_t depth;  // of a block of k; the last may be shorter
  const float* a;
};

// Sums of columns [begin, end).
void multiply_columns(const FewRows& f, int64_t begin, int64_t end) {
  static thread_local Scratch scratch;
  const Matmul& p = f.problem;
  const int64_t columns = end - begin;
  float* const sums = scratch.get<float>(p.m * columns + kDotColumns * f.depth);
  float* const widened = sums + p.m * columns;
  const auto element = [&](int64_t column, int64_t k) {
    return static_cast<const std::byte*>(p.b.data) + (column * p.b.stride + k) * f.size;
  };
  for (int64_t k = 0; k < p.k; k += f.depth) {
    const int64_t depth = std::min(f.depth, p.k - k);
    for (int64_t j = 0; j < columns; j += kDotColumns) {
      const int64_t here = std::min(kDotColumns, columns - j);
      const bool last = j + kDotColumns >= columns, end_of_all = last && k + depth >= p.k;
      const int64_t next = last ? 0 : j + kDotColumns, next_k = last ? k + depth : k;
      const std::byte* const b = element(begin + j, k);
      const bool widen = f.type != FloatType::kFloat32;
      if (widen) widen_block(f.type, b, p.b.stride, widened, depth, here, depth);
      HWY_DYNAMIC_DISPATCH(dots)
      ({.a = f.a + k * p.m,
        .a_stride = depth,
        .rows = p.m,
        .b = widen ? widened : reinterpret_cast<const float*>(b),
        .b_stride = widen ? depth : p.b.stride,
        .columns = here,
        .depth = depth,
        .sums = sums + j,
        .sums_stride = columns,
        .first = k == 0,
        .next = end_of_all ? nullptr : element(begin + next, next_k),
        .next_stride = p.b.stride * f.size,
        .next_bytes = std::min(f.depth, p.k - next_k) * f.size,
        .next_columns = std::min(kDotColumns, columns - next)});
    }
  }
  finish_part(p, sums, columns, 0, p.m, begin, columns);
}

// Rows [begin, end) of A as FewRows has them.
void copy_rows(const FewRows& f, int64_t begin, int64_t end, float* to) {
  const Matmul& p = f.problem;
  const auto* from = static_cast<const std::byte*>(p.a.data);
  for (int64_t k = 0; k < p.k; k += f.depth) {
    const int64_t depth = std::min(f.depth, p.k - k);
    float* const block = to + k * p.m + begin * depth;
    widen_block(f.type, from + (begin * p.a.stride + k) * f.size, p.a.stride, block, depth,
                end - begin, depth);
  }
}

}  // namespace

void multiply_few_rows(const Matmul& p, ThreadPool& pool) {
  static thread_local Scratch scratch;
  constexpr int64_t kMostDepth = 768, kMostColumns = 16 * kDotColumns, kRowsOfCopy = 4;
  const int64_t blocks = divide_up(p.k, kMostDepth);
  float* const a = scratch.get<float>(p.m * p.k);
  const FewRows f{.problem = p,
                  .type = float_type(p.in),
                  .size = element_size(p.in),
                  .depth = divide_up(divide_up(p.k, blocks), 16) * 16,
                  .a = a};
  pool.for_range(p.m, kRowsOfCopy,
                 [&](int64_t begin, int64_t end) { copy_rows(f, begin, end, a); });
  // Some tasks for each thread, so that none waits long for the last.
  const int64_t share = divide_up(divide_up(p.n, 8 * int64_t{pool.threads()}), kDotColumns);
  const int64_t columns = std::clamp(share * kDotColumns, kDotColumns, kMostColumns);
  pool.for_range(p.n, columns,
                 [&](int64_t begin, int64_t end) { multiply_columns(f, begin, end); });
}

}  // namespace gemm
}  // namespace ds::kernels
#endif  // HWY_ONCE
