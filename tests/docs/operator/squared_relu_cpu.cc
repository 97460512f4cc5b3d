// The frame of kernels/simd-inl.h around the fast version that docs/add-an-operator.md shows, step
// 3; backward is written like it.
#include "kernels/activation/squared_relu.h"
#include "kernels/float_type.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/docs/operator/squared_relu_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

#include "page/fast.inc"

template <class T>
void backward_range(const T* x, const T* dy, int64_t n, T* dx) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF v = hn::Max(simd::load_n(d, x + i, count), hn::Zero(d));
    simd::store_n(hn::Mul(hn::Add(v, v), simd::load_n(d, dy + i, count)), d, dx + i, count);
  });
}

void backward_any(FloatType type, const void* x, const void* dy, int64_t n, void* dx) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    backward_range(static_cast<const T*>(x), static_cast<const T*>(dy), n, static_cast<T*>(dx));
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(forward_any);
HWY_EXPORT(backward_any);

constexpr int64_t kGrain = 16384;

}  // namespace

template <class T>
void squared_relu(const T* x, int64_t n, T* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(forward_any)(kFloatType<T>, x + begin, end - begin, y + begin);
  });
}

template <class T>
void squared_relu_backward(const T* x, const T* dy, int64_t n, T* dx, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(backward_any)
    (kFloatType<T>, x + begin, dy + begin, end - begin, dx + begin);
  });
}

template void squared_relu(const float*, int64_t, float*, ThreadPool&);
template void squared_relu(const bfloat16*, int64_t, bfloat16*, ThreadPool&);
template void squared_relu(const float16*, int64_t, float16*, ThreadPool&);
template void squared_relu_backward(const float*, const float*, int64_t, float*, ThreadPool&);
template void squared_relu_backward(const bfloat16*, const bfloat16*, int64_t, bfloat16*,
                                    ThreadPool&);
template void squared_relu_backward(const float16*, const float16*, int64_t, float16*, ThreadPool&);

}  // namespace ds::kernels
#endif  // HWY_ONCE
