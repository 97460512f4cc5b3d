// Vector code of widen.h.
#include "kernels/matmul/widen.h"

#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/widen_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

void widen(const bfloat16* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
           int64_t columns) {
  const simd::DF d;
  for (int64_t i = 0; i < rows; ++i) {
    const bfloat16* source = from + i * from_stride;
    float* target = to + i * to_stride;
    simd::for_vectors(columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      simd::store_n(simd::load_n(d, source + j, count), d, target + j, count);
    });
  }
}

template <class T>
void finish(const float* from, int64_t from_stride, const bfloat16* bias, bool accumulate, T* c,
            int64_t c_stride, int64_t rows, int64_t columns) {
  const simd::DF d;
  for (int64_t i = 0; i < rows; ++i) {
    const float* source = from + i * from_stride;
    T* target = c + i * c_stride;
    simd::for_vectors(columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      auto value = simd::load_n(d, source + j, count);
      if (bias != nullptr) value = simd::hn::Add(value, simd::load_n(d, bias + j, count));
      if (accumulate) value = simd::hn::Add(value, simd::load_n(d, target + j, count));
      simd::store_n(value, d, target + j, count);
    });
  }
}

void finish_float(const float* from, int64_t from_stride, const bfloat16* bias, bool accumulate,
                  float* c, int64_t c_stride, int64_t rows, int64_t columns) {
  finish(from, from_stride, bias, accumulate, c, c_stride, rows, columns);
}

void finish_bfloat16(const float* from, int64_t from_stride, const bfloat16* bias, bool accumulate,
                     bfloat16* c, int64_t c_stride, int64_t rows, int64_t columns) {
  finish(from, from_stride, bias, accumulate, c, c_stride, rows, columns);
}

void start(const float* bias, bool accumulate, float* c, int64_t c_stride, int64_t rows,
           int64_t columns) {
  const simd::DF d;
  for (int64_t i = 0; i < rows; ++i) {
    float* target = c + i * c_stride;
    simd::for_vectors(columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      auto value = simd::load_n(d, bias + j, count);
      if (accumulate) value = simd::hn::Add(value, simd::load_n(d, target + j, count));
      simd::store_n(value, d, target + j, count);
    });
  }
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {

HWY_EXPORT(widen);
HWY_EXPORT(finish_float);
HWY_EXPORT(finish_bfloat16);
HWY_EXPORT(start);

void widen_block(const bfloat16* from, int64_t from_stride, float* to, int64_t to_stride,
                 int64_t rows, int64_t columns) {
  HWY_DYNAMIC_DISPATCH(widen)(from, from_stride, to, to_stride, rows, columns);
}

void finish_block(const float* from, int64_t from_stride, const bfloat16* bias, bool accumulate,
                  float* c, int64_t c_stride, int64_t rows, int64_t columns) {
  HWY_DYNAMIC_DISPATCH(finish_float)
  (from, from_stride, bias, accumulate, c, c_stride, rows, columns);
}

void finish_block(const float* from, int64_t from_stride, const bfloat16* bias, bool accumulate,
                  bfloat16* c, int64_t c_stride, int64_t rows, int64_t columns) {
  HWY_DYNAMIC_DISPATCH(finish_bfloat16)
  (from, from_stride, bias, accumulate, c, c_stride, rows, columns);
}

void start_with_bias(const float* bias, bool accumulate, float* c, int64_t c_stride, int64_t rows,
                     int64_t columns) {
  HWY_DYNAMIC_DISPATCH(start)(bias, accumulate, c, c_stride, rows, columns);
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
