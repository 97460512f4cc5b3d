// Vector code of the activations, plain and gated; the functions are in functions-inl.h.
#include "kernels/activation/activation.h"

#include <algorithm>

#include "kernels/float_type.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/activation_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/activation/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

// Calls fn with a value of the function's class.
template <class Fn>
void with_function(ActivationKind kind, const Fn& fn) {
  switch (kind) {
    case ActivationKind::kRelu:
      return fn(Relu{});
    case ActivationKind::kSilu:
      return fn(Silu{});
    case ActivationKind::kGeluTanh:
      return fn(GeluTanh{});
    case ActivationKind::kGeluErf:
      return fn(GeluErf{});
    case ActivationKind::kTanh:
      return fn(Tanh{});
  }
}

template <class F, class T>
void value_range(const T* x, int64_t n, T* y) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(F::value(d, simd::load_n(d, x + i, count)), d, y + i, count);
  });
}

template <class F, class T>
void derivative_range(const T* dy, const T* x, int64_t n, T* dx) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF slope = F::derivative(d, simd::load_n(d, x + i, count));
    simd::store_n(hn::Mul(simd::load_n(d, dy + i, count), slope), d, dx + i, count);
  });
}

template <class F, class T>
void gated_range(const T* gate, const T* up, int64_t n, T* y) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF f = F::value(d, simd::load_n(d, gate + i, count));
    simd::store_n(hn::Mul(f, simd::load_n(d, up + i, count)), d, y + i, count);
  });
}

template <class F, class T>
void gated_backward_range(const T* dy, const T* gate, const T* up, int64_t n, T* dgate, T* dup) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const ValueAndDerivative f = F::both(d, simd::load_n(d, gate + i, count));
    const VF g = simd::load_n(d, dy + i, count), u = simd::load_n(d, up + i, count);
    simd::store_n(hn::Mul(hn::Mul(g, u), f.derivative), d, dgate + i, count);
    simd::store_n(hn::Mul(g, f.value), d, dup + i, count);
  });
}

// What is exported, with pointers to elements of the type that is named.

void value_any(FloatType type, ActivationKind kind, const void* x, int64_t n, void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    with_function(kind, [&](auto f) {
      value_range<decltype(f)>(static_cast<const T*>(x), n, static_cast<T*>(y));
    });
  });
}
void derivative_any(FloatType type, ActivationKind kind, const void* dy, const void* x, int64_t n,
                    void* dx) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    with_function(kind, [&](auto f) {
      derivative_range<decltype(f)>(static_cast<const T*>(dy), static_cast<const T*>(x), n,
                                    static_cast<T*>(dx));
    });
  });
}
void gated_any(FloatType type, ActivationKind kind, const void* gate, const void* up, int64_t n,
               void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    with_function(kind, [&](auto f) {
      gated_range<decltype(f)>(static_cast<const T*>(gate), static_cast<const T*>(up), n,
                               static_cast<T*>(y));
    });
  });
}
void gated_backward_any(FloatType type, ActivationKind kind, const void* dy, const void* gate,
                        const void* up, int64_t n, void* dgate, void* dup) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    with_function(kind, [&](auto f) {
      gated_backward_range<decltype(f)>(static_cast<const T*>(dy), static_cast<const T*>(gate),
                                        static_cast<const T*>(up), n, static_cast<T*>(dgate),
                                        static_cast<T*>(dup));
    });
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(value_any);
HWY_EXPORT(derivative_any);
HWY_EXPORT(gated_any);
HWY_EXPORT(gated_backward_any);

constexpr int64_t kGrain = 16384;  // elements per chunk

// Calls part(row, column, count) for the parts of rows inside each chunk of elements.
template <class Part>
void for_row_parts(int64_t rows, int64_t cols, ThreadPool& pool, const Part& part) {
  if (cols <= 0) return;
  pool.for_range(rows * cols, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t column = begin % cols, count = std::min(cols - column, end - begin);
      part(begin / cols, column, count);
      begin += count;
    }
  });
}

}  // namespace

template <class T>
void activation(const T* x, ActivationKind kind, int64_t n, T* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(value_any)(kFloatType<T>, kind, x + begin, end - begin, y + begin);
  });
}

template <class T>
void activation_backward(const T* dy, const T* x, ActivationKind kind, int64_t n, T* dx,
                         ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(derivative_any)
    (kFloatType<T>, kind, dy + begin, x + begin, end - begin, dx + begin);
  });
}

template <class T>
void gated_activation(const GatedActivation<T>& call, ThreadPool& pool) {
  for_row_parts(call.rows, call.cols, pool, [&](int64_t row, int64_t column, int64_t count) {
    const auto at = [&](const auto& m) { return m.data + row * m.stride + column; };
    HWY_DYNAMIC_DISPATCH(gated_any)
    (kFloatType<T>, call.kind, at(call.gate), at(call.up), count, at(call.y));
  });
}

template <class T>
void gated_activation_backward(const GatedActivationBackward<T>& call, ThreadPool& pool) {
  for_row_parts(call.rows, call.cols, pool, [&](int64_t row, int64_t column, int64_t count) {
    const auto at = [&](const auto& m) { return m.data + row * m.stride + column; };
    HWY_DYNAMIC_DISPATCH(gated_backward_any)
    (kFloatType<T>, call.kind, at(call.dy), at(call.gate), at(call.up), count, at(call.dgate),
     at(call.dup));
  });
}

#define DS_ONE_TYPE(T)                                                                             \
  template void activation(const T*, ActivationKind, int64_t, T*, ThreadPool&);                    \
  template void activation_backward(const T*, const T*, ActivationKind, int64_t, T*, ThreadPool&); \
  template void gated_activation(const GatedActivation<T>&, ThreadPool&);                          \
  template void gated_activation_backward(const GatedActivationBackward<T>&, ThreadPool&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
#endif  // HWY_ONCE
