// Vector code around int8 products: quantisation of rows, and scales of sums.
#include <algorithm>

#include "kernels/matmul/int8_kernel.h"
#include "kernels/matmul/int8_matmul.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/int8_convert_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void quantize_row(const T* x, int64_t n, int8_t* q, float* scale) {
  const simd::DF d;
  const hn::RebindToSigned<simd::DF> di;
  simd::VF largest = hn::Zero(d), odd = hn::Zero(d);
  simd::for_vectors(n, [&](int64_t j, auto count) DS_SIMD_BODY {
    const simd::VF v = simd::load_n(d, x + j, count);
    largest = hn::Max(largest, hn::Abs(v));
    odd = hn::Add(odd, hn::Sub(v, v));  // NaN where v is not finite
  });
  const float most = simd::max_of_lanes(d, largest);
  const float nan = simd::sum_of_lanes(d, odd);
  *scale = nan == 0 ? most / 127 : nan;
  // Below 1e-37 the inverse would overflow; such rows are zero.
  const bool zero = nan != 0 || !(most > 1e-35f);
  if (zero && nan == 0) *scale = 0;
  const simd::VF inverse = hn::Set(d, zero ? 0.0f : 127 / most);
  HWY_ALIGN int32_t buffer[hn::MaxLanes(simd::DF())];
  const int64_t lanes = simd::lanes();
  for (int64_t j = 0; j < n; j += lanes) {
    const int64_t count = std::min(lanes, n - j);
    if (zero) {
      std::fill(q + j, q + j + count, int8_t{0});
      continue;
    }
    hn::Store(hn::NearestInt(hn::Mul(simd::load_n(d, x + j, count), inverse)), di, buffer);
    for (int64_t l = 0; l < count; ++l) q[j + l] = static_cast<int8_t>(buffer[l]);
  }
}

void quantize(const QuantizeRows& call, int64_t begin, int64_t end) {
  with_float_type(call.type, [&](auto t) {
    for (int64_t i = begin; i < end; ++i) {
      quantize_row(static_cast<const decltype(t)*>(call.x) + i * call.x_stride, call.columns,
                   call.q + i * call.q_stride, call.scales + i);
    }
  });
}

void scale(float* sums, int64_t stride, int64_t rows, int64_t columns, const float* row_scales,
           const float* column_scales) {
  const simd::DF d;
  const hn::RebindToSigned<simd::DF> di;
  for (int64_t i = 0; i < rows; ++i, sums += stride) {
    const simd::VF row = hn::Set(d, row_scales[i]);
    simd::for_vectors(columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      const simd::VF bits = simd::load_n(d, sums + j, count);
      const simd::VF sum = hn::ConvertTo(d, hn::BitCast(di, bits));
      const simd::VF both = hn::Mul(row, simd::load_n(d, column_scales + j, count));
      simd::store_n(hn::Mul(sum, both), d, sums + j, count);
    });
  }
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {

HWY_EXPORT(quantize);
HWY_EXPORT(scale);

void quantize_rows(const QuantizeRows& call, ThreadPool& pool) {
  constexpr int64_t kRows = 16;
  pool.for_range(call.rows, kRows, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(quantize)(call, begin, end);
  });
}

namespace gemm {

void scale_sums(float* sums, int64_t stride, int64_t rows, int64_t columns, const float* row_scales,
                const float* column_scales) {
  HWY_DYNAMIC_DISPATCH(scale)(sums, stride, rows, columns, row_scales, column_scales);
}

}  // namespace gemm
}  // namespace ds::kernels
#endif  // HWY_ONCE
