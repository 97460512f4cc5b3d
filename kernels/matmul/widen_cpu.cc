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

template <class T>
void widen_rows(const T* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                int64_t columns) {
  const simd::DF d;
  for (int64_t i = 0; i < rows; ++i) {
    const T* source = from + i * from_stride;
    float* target = to + i * to_stride;
    simd::for_vectors(columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      simd::store_n(simd::load_n(d, source + j, count), d, target + j, count);
    });
  }
}
void widen(FloatType type, const void* from, int64_t from_stride, float* to, int64_t to_stride,
           int64_t rows, int64_t columns) {
  with_float_type(type, [&](auto t) {
    widen_rows(static_cast<const decltype(t)*>(from), from_stride, to, to_stride, rows, columns);
  });
}

template <class B, class C>
void finish_rows(const FinishBlock& call) {
  const simd::DF d;
  const B* bias = static_cast<const B*>(call.bias);
  for (int64_t i = 0; i < call.rows; ++i) {
    const float* source = call.from + i * call.from_stride;
    C* target = static_cast<C*>(call.c) + i * call.c_stride;
    simd::for_vectors(call.columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      auto value = simd::load_n(d, source + j, count);
      if (bias != nullptr) value = simd::hn::Add(value, simd::load_n(d, bias + j, count));
      if (call.accumulate) value = simd::hn::Add(value, simd::load_n(d, target + j, count));
      simd::store_n(value, d, target + j, count);
    });
  }
}
void finish(const FinishBlock& call) {
  with_float_type(call.bias_type, [&](auto b) {
    with_float_type(call.c_type, [&](auto c) { finish_rows<decltype(b), decltype(c)>(call); });
  });
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
HWY_EXPORT(finish);
HWY_EXPORT(start);

void widen_block(FloatType type, const void* from, int64_t from_stride, float* to,
                 int64_t to_stride, int64_t rows, int64_t columns) {
  HWY_DYNAMIC_DISPATCH(widen)(type, from, from_stride, to, to_stride, rows, columns);
}

void finish_block(const FinishBlock& call) { HWY_DYNAMIC_DISPATCH(finish)(call); }

void start_with_bias(const float* bias, bool accumulate, float* c, int64_t c_stride, int64_t rows,
                     int64_t columns) {
  HWY_DYNAMIC_DISPATCH(start)(bias, accumulate, c, c_stride, rows, columns);
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
