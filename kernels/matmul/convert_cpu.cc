// Vector code of convert.h.
#include "kernels/matmul/convert.h"

#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/convert_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/activation/functions-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

using gemm::FinishBlock;

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

template <class Function, bool kRough>
void apply_rows(float* sums, int64_t stride, int64_t rows, int64_t columns) {
  const simd::DF d;
  for (int64_t i = 0; i < rows; ++i, sums += stride) {
    simd::for_vectors(columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      const simd::VF v = simd::load_n(d, sums + j, count);
      simd::store_n(Function::template value<kRough>(d, v), d, sums + j, count);
    });
  }
}
template <class Function>
void apply(const FinishBlock& call) {
  if (call.c_type == FloatType::kBFloat16) {
    apply_rows<Function, true>(call.sums, call.sums_stride, call.rows, call.columns);
  } else {
    apply_rows<Function, false>(call.sums, call.sums_stride, call.rows, call.columns);
  }
}
void apply_activation(const FinishBlock& call) {
  switch (*call.activation) {
    case ActivationKind::kRelu:
      return apply<Relu>(call);
    case ActivationKind::kSilu:
      return apply<Silu>(call);
    case ActivationKind::kGeluTanh:
      return apply<GeluTanh>(call);
    case ActivationKind::kGeluErf:
      return apply<GeluErf>(call);
    case ActivationKind::kTanh:
      return apply<Tanh>(call);
  }
}

template <class T>
void store_rows(const float* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows,
                int64_t columns) {
  const simd::DF d;
  for (int64_t i = 0; i < rows; ++i, from += from_stride, to += to_stride) {
    simd::for_vectors(columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      simd::store_n(simd::load_n(d, from + j, count), d, to + j, count);
    });
  }
}

template <class B, class C>
void finish_rows(const FinishBlock& call) {
  const simd::DF d;
  const auto alpha = simd::hn::Set(d, call.alpha);
  const bool scaled = call.alpha != 1, activated = call.activation.has_value();
  const B* bias = static_cast<const B*>(call.bias);
  C* c = static_cast<C*>(call.c);
  for (int64_t i = 0; i < call.rows; ++i) {
    float* sums = call.sums + i * call.sums_stride;
    C* target = c + i * call.c_stride;
    C* pre = call.pre != nullptr ? static_cast<C*>(call.pre) + i * call.pre_stride : nullptr;
    simd::for_vectors(call.columns, [&](int64_t j, auto count) DS_SIMD_BODY {
      auto value = simd::load_n(d, sums + j, count);
      if (scaled) value = simd::hn::Mul(value, alpha);
      if (bias != nullptr) value = simd::hn::Add(value, simd::load_n(d, bias + j, count));
      if (call.accumulate) value = simd::hn::Add(value, simd::load_n(d, target + j, count));
      if (!activated) return simd::store_n(value, d, target + j, count);
      simd::store_n(simd::rounded_to<C>(d, value), d, sums + j, count);
      if (pre != nullptr) simd::store_n(value, d, pre + j, count);
    });
  }
  if (!activated) return;
  apply_activation(call);
  store_rows(call.sums, call.sums_stride, c, call.c_stride, call.rows, call.columns);
}
void finish(const FinishBlock& call) {
  with_float_type(call.bias_type, [&](auto type) {
    using B = decltype(type);
    if (call.c_type == kFloatType<B>) return finish_rows<B, B>(call);
    finish_rows<B, float>(call);
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {

HWY_EXPORT(widen);
HWY_EXPORT(finish);

namespace gemm {

void widen_block(FloatType type, const void* from, int64_t from_stride, float* to,
                 int64_t to_stride, int64_t rows, int64_t columns) {
  HWY_DYNAMIC_DISPATCH(widen)(type, from, from_stride, to, to_stride, rows, columns);
}

void finish_block(const FinishBlock& call) { HWY_DYNAMIC_DISPATCH(finish)(call); }

}  // namespace gemm
}  // namespace ds::kernels
#endif  // HWY_ONCE
