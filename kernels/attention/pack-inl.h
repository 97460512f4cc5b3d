// Moves rows between strided fp32 or bf16 tensors and dense, zero-padded fp32 tiles, and turns
// tiles so that queries lie in vector lanes. Included once per SIMD target.
#if defined(DS_KERNELS_ATTENTION_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_ATTENTION_PACK_INL_H_
#undef DS_KERNELS_ATTENTION_PACK_INL_H_
#else
#define DS_KERNELS_ATTENTION_PACK_INL_H_
#endif

#include <cstring>

#include "kernels/attention/gemm-inl.h"
#include "kernels/attention/key_runs.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {

// rows x dim elements, `stride` apart, times `factor`, into rows of padded_dim floats.
template <class T>
HWY_INLINE void load_rows(const T* from, int64_t stride, int64_t rows, int64_t dim,
                          int64_t padded_dim, float factor, float* HWY_RESTRICT to) {
  const DF f;
  const VF scale = hn::Set(f, factor);
  for (int64_t row = 0; row < rows; ++row, from += stride, to += padded_dim) {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      hn::Store(hn::Mul(simd::load(f, from + d), scale), f, to + d);
    }
    if (d < dim) {
      hn::Store(hn::Mul(simd::load_n(f, from + d, dim - d), scale), f, to + d);
      d += kLanes;
    }
    for (; d < padded_dim; d += kLanes) hn::Store(hn::Zero(f), f, to + d);
  }
}

template <class T>
HWY_INLINE void store_rows(const float* HWY_RESTRICT from, int64_t padded_dim, int64_t rows,
                           int64_t dim, int64_t stride, T* to) {
  const DF f;
  for (int64_t row = 0; row < rows; ++row, from += padded_dim, to += stride) {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) simd::store(hn::Load(f, from + d), f, to + d);
    if (d < dim) simd::store_n(hn::Load(f, from + d), f, to + d, dim - d);
  }
}

// A tile of keys or values: rows that are masked, and the padding to kRowPad, are zero, so that
// whatever lies there (even NaN) cannot reach a sum.
template <class T>
HWY_INLINE void load_keys(KeyRuns<T> from, int64_t rows, const uint8_t* mask, int64_t dim,
                          int64_t padded_dim, float* to) {
  while (from.next()) {
    if (mask == nullptr) {
      load_rows(from.rows, from.stride, from.count(), dim, padded_dim, 1.0f,
                to + from.begin * padded_dim);
      continue;
    }
    for (int64_t row = from.begin; row < from.end; ++row) {
      float* target = to + row * padded_dim;
      if (mask[row] != 0) {
        load_rows(from.rows + (row - from.begin) * from.stride, from.stride, 1, dim, padded_dim,
                  1.0f, target);
      } else {
        std::memset(target, 0, static_cast<size_t>(padded_dim) * sizeof(float));
      }
    }
  }
  const int64_t padding = round_up(rows, kRowPad) - rows;
  std::memset(to + rows * padded_dim, 0, static_cast<size_t>(padding * padded_dim) * sizeof(float));
}

// Turns 4 x 4 floats: rows `from_stride` apart become columns.
HWY_INLINE void turn4(const float* HWY_RESTRICT from, int64_t from_stride, float* HWY_RESTRICT to,
                      int64_t to_stride) {
  const hn::FixedTag<float, 4> f4;
  const hn::FixedTag<double, 2> d2;
  const auto r0 = hn::Load(f4, from), r1 = hn::Load(f4, from + from_stride);
  const auto r2 = hn::Load(f4, from + 2 * from_stride), r3 = hn::Load(f4, from + 3 * from_stride);
  const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(f4, r0, r1));
  const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(f4, r0, r1));
  const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(f4, r2, r3));
  const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(f4, r2, r3));
  hn::Store(hn::BitCast(f4, hn::InterleaveLower(d2, lo01, lo23)), f4, to);
  hn::Store(hn::BitCast(f4, hn::InterleaveUpper(d2, lo01, lo23)), f4, to + to_stride);
  hn::Store(hn::BitCast(f4, hn::InterleaveLower(d2, hi01, hi23)), f4, to + 2 * to_stride);
  hn::Store(hn::BitCast(f4, hn::InterleaveUpper(d2, hi01, hi23)), f4, to + 3 * to_stride);
}

// Rows of queries to groups: group g is a [padded_dim][kGroup] tile at g * padded_dim * kGroup.
// Rows up to the next whole vector are cleared in `rows`; lanes beyond are left as they were and
// not used.
HWY_NOINLINE inline void rows_to_lanes(float* rows, int64_t count, int64_t padded_dim,
                                       float* lanes) {
  const int64_t padded = round_up(count, kLanes);
  std::memset(rows + count * padded_dim, 0,
              static_cast<size_t>((padded - count) * padded_dim) * sizeof(float));
  for (int64_t row = 0; row < padded; row += 4) {
    float* to = lanes + row / kGroup * kGroup * padded_dim + row % kGroup;
    for (int64_t d = 0; d < padded_dim; d += 4) {
      turn4(rows + row * padded_dim + d, padded_dim, to + d * kGroup, kGroup);
    }
  }
}

HWY_NOINLINE inline void lanes_to_rows(const float* lanes, int64_t count, int64_t padded_dim,
                                       float* rows) {
  for (int64_t row = 0; row < round_up(count, 4); row += 4) {
    const float* from = lanes + row / kGroup * kGroup * padded_dim + row % kGroup;
    for (int64_t d = 0; d < padded_dim; d += 4) {
      turn4(from + d * kGroup, kGroup, rows + row * padded_dim + d, padded_dim);
    }
  }
}

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
