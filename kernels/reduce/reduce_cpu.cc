// The reductions with Highway.
#include "kernels/reduce/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/reduce_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::AllLanes;
using simd::DD;
using simd::DF;
using simd::VD;
using simd::VF;

// Of a chunk.
constexpr int64_t kExactSquares = kReduceGrain / kExactBlock;

// Two vectors of elements at a time, each split into two of doubles: four sums.
template <bool kSquares, class T>
double sum_chunk(const T* x, int64_t n) {
  const DF d;
  const DD dd;
  VD s0 = hn::Zero(dd), s1 = s0, s2 = s0, s3 = s0;
  const auto add = [&](VF v, VD& lower, VD& upper) DS_SIMD_BODY {
    const VD a = simd::lower_doubles(v), b = simd::upper_doubles(v);
    if constexpr (kSquares) {
      lower = hn::MulAdd(a, a, lower);
      upper = hn::MulAdd(b, b, upper);
    } else {
      lower = hn::Add(lower, a);
      upper = hn::Add(upper, b);
    }
  };
  const int64_t step = simd::lanes();
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    add(simd::load(d, x + i), s0, s1);
    add(simd::load(d, x + i + step), s2, s3);
  }
  for (; i < n; i += step) {
    add(simd::load_n(d, x + i, n - i < step ? n - i : step), s0, s1);
  }
  return simd::sum_of_lanes(dd, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

double sum_f32(const float* x, int64_t n) { return sum_chunk<false>(x, n); }
double sum_bf16(const bfloat16* x, int64_t n) { return sum_chunk<false>(x, n); }
double sum_f16(const float16* x, int64_t n) { return sum_chunk<false>(x, n); }
double squares_f32(const float* x, int64_t n) { return sum_chunk<true>(x, n); }
double squares_bf16(const bfloat16* x, int64_t n) { return sum_chunk<true>(x, n); }
double squares_f16(const float16* x, int64_t n) { return sum_chunk<true>(x, n); }

// Halves of a vector added up until one lane is left.
template <class D>
HWY_INLINE double fold(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half{};
    return fold(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The squares of kExactBlock elements in the order that reduce.h tells, for any width of vectors.
template <class T>
HWY_INLINE double square_block(const T* x) {
  constexpr size_t kLanes = hn::MaxLanes(DD()), kParts = 8 / kLanes;
  VD squares[kExactBlock / kLanes];
  for (size_t i = 0; i < kExactBlock / kLanes; i += 2) {
    const VF v = simd::load(DF(), x + i * kLanes);
    const VD a = simd::lower_doubles(v), b = simd::upper_doubles(v);
    squares[i] = hn::Mul(a, a);
    squares[i + 1] = hn::Mul(b, b);
  }
  VD parts[kParts];
  for (size_t i = 0; i < kParts; ++i) {
    parts[i] = hn::Add(hn::Add(squares[i], squares[kParts + i]),
                       hn::Add(squares[2 * kParts + i], squares[3 * kParts + i]));
  }
  for (size_t count = kParts / 2; count > 0; count /= 2) {
    for (size_t i = 0; i < count; ++i) parts[i] = hn::Add(parts[i], parts[i + count]);
  }
  return fold(DD(), parts[0]);
}

// out[i] = squares of block i.
template <class T>
void square_blocks(const T* x, int64_t n, double* out) {
  int64_t i = 0;
  for (; i + kExactBlock <= n; i += kExactBlock) *out++ = square_block(x + i);
  if (i == n) return;
  T padded[kExactBlock] = {};
  std::copy_n(x + i, n - i, padded);
  *out = square_block(padded);
}
void square_blocks_f32(const float* x, int64_t n, double* out) { square_blocks(x, n, out); }
void square_blocks_bf16(const bfloat16* x, int64_t n, double* out) { square_blocks(x, n, out); }
void square_blocks_f16(const float16* x, int64_t n, double* out) { square_blocks(x, n, out); }

// A few numbers with the very sum of x, so that what adds numbers exactly has less to do. Those of
// x are from 0 on, and no more than kExactSquares whole vectors. Returns how many it writes, at
// most three vectors; -1 where x is not finite or reaches too far down.
//
// Each number is cut at multiples of three powers of 2, so far apart that the sums of the parts are
// exact: adding 1.5 times 2^52 of such a multiple, and taking it away again, rounds to them.
int64_t condense(const double* x, int64_t n, double* out) {
  constexpr int kParts = 3, kAdds = 12, kBits = 52;
  static_assert(kExactSquares <= 1 << (kAdds - 1));
  const DD d;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  VD most = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
  const double largest = hn::GetLane(hn::MaxOfLanes(d, most));
  if (!std::isfinite(largest)) return -1;
  VD round[kParts], sums[kParts], left = hn::Zero(d);
  int exponent = largest > 0 ? std::ilogb(largest) : 0;
  for (int k = 0; k < kParts; ++k, exponent -= kBits + 2 - kAdds) {
    round[k] = hn::Set(d, std::ldexp(1.5, exponent + kAdds));
    sums[k] = hn::Zero(d);
  }
  for (int64_t i = 0; i < n; i += lanes) {
    VD rest = hn::LoadU(d, x + i);
    for (int k = 0; k < kParts; ++k) {
      const VD part = hn::Sub(hn::Add(rest, round[k]), round[k]);
      sums[k] = hn::Add(sums[k], part);
      rest = hn::Sub(rest, part);
    }
    left = hn::Or(left, rest);
  }
  VD all = left;
  for (int k = 0; k < kParts; ++k) {
    all = hn::Or(all, hn::Sub(sums[k], sums[k]));  // NaN where it is not finite
    hn::StoreU(sums[k], d, out + k * lanes);
  }
  return hn::AllTrue(d, hn::Eq(all, hn::Zero(d))) ? kParts * lanes : -1;
}

// Bits of |v|: as integers they order like the magnitudes, with NaN above infinity.
HWY_INLINE hn::Vec<hn::RebindToSigned<DF>> magnitude_bits(DF d, VF v) {
  return hn::BitCast(hn::RebindToSigned<DF>(), hn::Abs(hn::BitCast(d, v)));
}

template <class T>
float max_chunk(const T* x, int64_t n) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  auto m0 = hn::Zero(di), m1 = m0;
  const int64_t step = simd::lanes();
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    m0 = hn::Max(m0, magnitude_bits(d, simd::load(d, x + i)));
    m1 = hn::Max(m1, magnitude_bits(d, simd::load(d, x + i + step)));
  }
  for (; i < n; i += step) {
    m0 = hn::Max(m0, magnitude_bits(d, simd::load_n(d, x + i, n - i < step ? n - i : step)));
  }
  return hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, hn::Max(m0, m1))));
}

float max_f32(const float* x, int64_t n) { return max_chunk(x, n); }
float max_bf16(const bfloat16* x, int64_t n) { return max_chunk(x, n); }
float max_f16(const float16* x, int64_t n) { return max_chunk(x, n); }

template <class T>
int64_t find_chunk(const T* x, int64_t n) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto largest = hn::Set(di, 0x7F7FFFFF);  // finite
  const auto bad = [&](VF v) DS_SIMD_BODY { return hn::Gt(magnitude_bits(d, v), largest); };
  const int64_t step = simd::lanes();
  int64_t i = 0;
  // Four vectors a test: the largest magnitude stands for all of them.
  for (; i + 4 * step <= n; i += 4 * step) {
    const auto a = hn::Max(magnitude_bits(d, simd::load(d, x + i)),
                           magnitude_bits(d, simd::load(d, x + i + step)));
    const auto b = hn::Max(magnitude_bits(d, simd::load(d, x + i + 2 * step)),
                           magnitude_bits(d, simd::load(d, x + i + 3 * step)));
    if (!hn::AllFalse(di, hn::Gt(hn::Max(a, b), largest))) break;
  }
  for (; i < n; i += step) {
    const auto mask = bad(simd::load_n(d, x + i, n - i < step ? n - i : step));
    const intptr_t lane = hn::FindFirstTrue(di, mask);
    if (lane >= 0) return i + lane;
  }
  return -1;
}

int64_t find_f32(const float* x, int64_t n) { return find_chunk(x, n); }
int64_t find_bf16(const bfloat16* x, int64_t n) { return find_chunk(x, n); }
int64_t find_f16(const float16* x, int64_t n) { return find_chunk(x, n); }

// partial[cols] = column sums of `rows` rows that lie `stride` elements apart. Eight rows at a
// time, so that the partial sums are read and written once for eight.
template <class T>
void column_sums_block(const T* x, int64_t rows, int64_t stride, int64_t cols, float* partial) {
  const DF d;
  simd::for_vectors(cols, [&](int64_t j, auto count)
                              DS_SIMD_BODY { simd::store_n(hn::Zero(d), d, partial + j, count); });
  int64_t row = 0;
  for (; row + 8 <= rows; row += 8) {
    const T* r = x + row * stride;
    simd::for_vectors(cols, [&](int64_t j, auto count) DS_SIMD_BODY {
      const T* p = r + j;
      const VF a = hn::Add(simd::load_n(d, p, count), simd::load_n(d, p + stride, count));
      const VF b =
          hn::Add(simd::load_n(d, p + 2 * stride, count), simd::load_n(d, p + 3 * stride, count));
      const VF c =
          hn::Add(simd::load_n(d, p + 4 * stride, count), simd::load_n(d, p + 5 * stride, count));
      const VF e =
          hn::Add(simd::load_n(d, p + 6 * stride, count), simd::load_n(d, p + 7 * stride, count));
      const VF all = hn::Add(hn::Add(a, b), hn::Add(c, e));
      simd::store_n(hn::Add(simd::load_n(d, partial + j, count), all), d, partial + j, count);
    });
  }
  for (; row < rows; ++row) {
    const T* r = x + row * stride;
    simd::for_vectors(cols, [&](int64_t j, auto count) DS_SIMD_BODY {
      const VF s = hn::Add(simd::load_n(d, partial + j, count), simd::load_n(d, r + j, count));
      simd::store_n(s, d, partial + j, count);
    });
  }
}

void columns_f32(const float* x, int64_t rows, int64_t stride, int64_t cols, float* partial) {
  column_sums_block(x, rows, stride, cols, partial);
}
void columns_bf16(const bfloat16* x, int64_t rows, int64_t stride, int64_t cols, float* partial) {
  column_sums_block(x, rows, stride, cols, partial);
}
void columns_f16(const float16* x, int64_t rows, int64_t stride, int64_t cols, float* partial) {
  column_sums_block(x, rows, stride, cols, partial);
}

// y[n] += the sum over chunks of partials[chunk * stride + i].
void combine(const float* partials, int64_t chunks, int64_t stride, int64_t n, float* y) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    VF s = simd::load_n(d, partials + i, count);
    for (int64_t c = 1; c < chunks; ++c) {
      s = hn::Add(s, simd::load_n(d, partials + c * stride + i, count));
    }
    simd::store_n(hn::Add(simd::load_n(d, y + i, count), s), d, y + i, count);
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(sum_f32);
HWY_EXPORT(sum_bf16);
HWY_EXPORT(sum_f16);
HWY_EXPORT(squares_f32);
HWY_EXPORT(squares_bf16);
HWY_EXPORT(squares_f16);
HWY_EXPORT(square_blocks_f32);
HWY_EXPORT(square_blocks_bf16);
HWY_EXPORT(square_blocks_f16);
HWY_EXPORT(condense);
HWY_EXPORT(max_f32);
HWY_EXPORT(max_bf16);
HWY_EXPORT(max_f16);
HWY_EXPORT(find_f32);
HWY_EXPORT(find_bf16);
HWY_EXPORT(find_f16);
HWY_EXPORT(columns_f32);
HWY_EXPORT(columns_bf16);
HWY_EXPORT(columns_f16);
HWY_EXPORT(combine);

// Runs chunk(pointer, count) for every chunk of x and keeps the results.
template <class T, class Partial, class Chunk>
void each_chunk(const T* x, int64_t n, Partial* partials, ThreadPool& pool, const Chunk& chunk) {
  pool.for_range(n, kReduceGrain, [&](int64_t begin, int64_t end) {
    partials[begin / kReduceGrain] = static_cast<Partial>(chunk(x + begin, end - begin));
  });
}

template <class T, class Chunk>
double add_chunks(const T* x, int64_t n, double* partials, ThreadPool& pool, const Chunk& chunk) {
  each_chunk(x, n, partials, pool, chunk);
  double total = 0;
  for (int64_t c = 0; c < reduce_chunks(n); ++c) total += partials[c];
  return total;
}

template <class T, class Blocks>
ExactSum exact_chunks(const T* x, int64_t n, ExactSum* partials, ThreadPool& pool,
                      const Blocks& blocks) {
  pool.for_range(n, kReduceGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kWhole = 8;  // vectors of every processor
    double squares[kReduceGrain / kExactBlock], few[3 * kWhole];
    const int64_t count = (end - begin + kExactBlock - 1) / kExactBlock;
    const int64_t filled = (count + kWhole - 1) / kWhole * kWhole;
    blocks(x + begin, end - begin, squares);
    std::fill(squares + count, squares + filled, 0.0);
    const int64_t condensed = HWY_DYNAMIC_DISPATCH(condense)(squares, filled, few);
    ExactSum& sum = partials[begin / kReduceGrain];
    sum = {};
    for (int64_t i = 0; i < condensed; ++i) sum.add(few[i]);
    for (int64_t i = 0; condensed < 0 && i < count; ++i) sum.add(squares[i]);
  });
  ExactSum total;
  for (int64_t c = 0; c < reduce_chunks(n); ++c) total.add(partials[c]);
  return total;
}

template <class T, class Chunk>
double max_chunks(const T* x, int64_t n, double* partials, ThreadPool& pool, const Chunk& chunk) {
  each_chunk(x, n, partials, pool, chunk);
  double most = 0;
  for (int64_t c = 0; c < reduce_chunks(n); ++c) {
    if (partials[c] != partials[c]) return std::numeric_limits<double>::quiet_NaN();
    if (partials[c] > most) most = partials[c];
  }
  return most;
}

template <class T, class Chunk>
int64_t find_chunks(const T* x, int64_t n, int64_t* partials, ThreadPool& pool,
                    const Chunk& chunk) {
  each_chunk(x, n, partials, pool, chunk);
  for (int64_t c = 0; c < reduce_chunks(n); ++c) {
    if (partials[c] >= 0) return c * kReduceGrain + partials[c];
  }
  return -1;
}

// Columns are cut too, so that the partial sums of a chunk stay in the first-level cache and few
// but wide rows still occupy all threads.
template <class T>
struct ColumnSums {
  const T* x;
  int64_t rows, cols, stride;
  float *y, *partials;
};
template <class T, class Block>
void column_sums(const ColumnSums<T>& call, ThreadPool& pool, const Block& block) {
  const int64_t rows = call.rows, cols = call.cols;
  if (rows <= 0 || cols <= 0) return;
  constexpr int64_t kColumns = 2048;
  const int64_t row_step = row_chunk_size(rows), chunks = row_chunks(rows);
  const int64_t column_chunks = (cols + kColumns - 1) / kColumns;
  pool.run(chunks * column_chunks, [&](int64_t chunk) {
    const int64_t c = chunk / column_chunks, first_col = chunk % column_chunks * kColumns;
    const int64_t first_row = c * row_step;
    const int64_t count = rows - first_row < row_step ? rows - first_row : row_step;
    const int64_t width = cols - first_col < kColumns ? cols - first_col : kColumns;
    block(call.x + first_row * call.stride + first_col, count, call.stride, width,
          call.partials + c * cols + first_col);
  });
  add_partial_sums(call.partials, chunks, cols, call.y, pool);
}

}  // namespace

double sum(const float* x, int64_t n, double* partials, ThreadPool& pool) {
  return add_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(sum_f32));
}
double sum(const bfloat16* x, int64_t n, double* partials, ThreadPool& pool) {
  return add_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(sum_bf16));
}
double sum(const float16* x, int64_t n, double* partials, ThreadPool& pool) {
  return add_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(sum_f16));
}
double sum_squares(const float* x, int64_t n, double* partials, ThreadPool& pool) {
  return add_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(squares_f32));
}
double sum_squares(const bfloat16* x, int64_t n, double* partials, ThreadPool& pool) {
  return add_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(squares_bf16));
}
double sum_squares(const float16* x, int64_t n, double* partials, ThreadPool& pool) {
  return add_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(squares_f16));
}
ExactSum exact_squares(const float* x, int64_t n, ExactSum* partials, ThreadPool& pool) {
  return exact_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(square_blocks_f32));
}
ExactSum exact_squares(const bfloat16* x, int64_t n, ExactSum* partials, ThreadPool& pool) {
  return exact_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(square_blocks_bf16));
}
ExactSum exact_squares(const float16* x, int64_t n, ExactSum* partials, ThreadPool& pool) {
  return exact_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(square_blocks_f16));
}
double max_abs(const float* x, int64_t n, double* partials, ThreadPool& pool) {
  return max_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(max_f32));
}
double max_abs(const bfloat16* x, int64_t n, double* partials, ThreadPool& pool) {
  return max_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(max_bf16));
}
double max_abs(const float16* x, int64_t n, double* partials, ThreadPool& pool) {
  return max_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(max_f16));
}
int64_t first_non_finite(const float* x, int64_t n, int64_t* partials, ThreadPool& pool) {
  return find_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(find_f32));
}
int64_t first_non_finite(const bfloat16* x, int64_t n, int64_t* partials, ThreadPool& pool) {
  return find_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(find_bf16));
}
int64_t first_non_finite(const float16* x, int64_t n, int64_t* partials, ThreadPool& pool) {
  return find_chunks(x, n, partials, pool, HWY_DYNAMIC_DISPATCH(find_f16));
}

void add_column_sums(const float* x, int64_t rows, int64_t cols, int64_t stride, float* y,
                     float* partials, ThreadPool& pool) {
  column_sums(ColumnSums<float>{x, rows, cols, stride, y, partials}, pool,
              HWY_DYNAMIC_DISPATCH(columns_f32));
}
void add_column_sums(const bfloat16* x, int64_t rows, int64_t cols, int64_t stride, float* y,
                     float* partials, ThreadPool& pool) {
  column_sums(ColumnSums<bfloat16>{x, rows, cols, stride, y, partials}, pool,
              HWY_DYNAMIC_DISPATCH(columns_bf16));
}
void add_column_sums(const float16* x, int64_t rows, int64_t cols, int64_t stride, float* y,
                     float* partials, ThreadPool& pool) {
  column_sums(ColumnSums<float16>{x, rows, cols, stride, y, partials}, pool,
              HWY_DYNAMIC_DISPATCH(columns_f16));
}

void add_partial_sums(const float* partials, int64_t chunks, int64_t cols, float* y,
                      ThreadPool& pool) {
  if (chunks <= 0) return;
  pool.for_range(cols, 1024, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(combine)(partials + begin, chunks, cols, end - begin, y + begin);
  });
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
