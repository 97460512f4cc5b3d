// Vector code of the activations, plain and gated; the functions are in functions-inl.h.
#include "kernels/activation/activation.h"

#include <algorithm>
#include <type_traits>

#include "base/thread_pool.h"
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

// The functions run over blocks of fp32 that stay in the first-level cache, so that there are two
// copies of each (rough for bf16) and not one per element type and tail.
constexpr int64_t kBlock = 512;

template <class F, bool kRough>
HWY_NOINLINE void values(const float* x, int64_t n, float* y) {
  const DF d;
  for (int64_t i = 0; i < n; i += simd::lanes())
    hn::Store(F::template value<kRough>(d, hn::Load(d, x + i)), d, y + i);
}

template <class F, bool kRough>
HWY_NOINLINE void values_and_derivatives(const float* x, int64_t n, float* y, float* slopes) {
  const DF d;
  for (int64_t i = 0; i < n; i += simd::lanes()) {
    const ValueAndDerivative f = F::template both<kRough>(d, hn::Load(d, x + i));
    hn::Store(f.value, d, y + i);
    hn::Store(f.derivative, d, slopes + i);
  }
}

// Both round n up to whole vectors.
template <bool kRough>
void values_of(ActivationKind kind, const float* x, int64_t n, float* y) {
  switch (kind) {
    case ActivationKind::kRelu:
      return values<Relu, kRough>(x, n, y);
    case ActivationKind::kSilu:
      return values<Silu, kRough>(x, n, y);
    case ActivationKind::kGeluTanh:
      return values<GeluTanh, kRough>(x, n, y);
    case ActivationKind::kGeluErf:
      return values<GeluErf, kRough>(x, n, y);
    case ActivationKind::kTanh:
      return values<Tanh, kRough>(x, n, y);
  }
}
template <bool kRough>
void both_of(ActivationKind kind, const float* x, int64_t n, float* y, float* slopes) {
  switch (kind) {
    case ActivationKind::kRelu:
      return values_and_derivatives<Relu, kRough>(x, n, y, slopes);
    case ActivationKind::kSilu:
      return values_and_derivatives<Silu, kRough>(x, n, y, slopes);
    case ActivationKind::kGeluTanh:
      return values_and_derivatives<GeluTanh, kRough>(x, n, y, slopes);
    case ActivationKind::kGeluErf:
      return values_and_derivatives<GeluErf, kRough>(x, n, y, slopes);
    case ActivationKind::kTanh:
      return values_and_derivatives<Tanh, kRough>(x, n, y, slopes);
  }
}

template <class T>
inline constexpr bool kRough = std::is_same_v<T, bfloat16>;

// Calls block(first, count, x as fp32 scratch) for the blocks of x; behind count follow zeros to
// the end of a vector.
template <class T, class Block>
HWY_INLINE void for_blocks(const T* x, int64_t n, const Block& block) {
  const DF d;
  HWY_ALIGN float wide[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = HWY_MIN(kBlock, n - begin), part = size % simd::lanes();
    const T* from = x + begin;
    if (part != 0) hn::Store(hn::Zero(d), d, wide + (size - part));
    simd::visit<T>(size, [&](auto at) DS_SIMD_BODY { at.store_scratch(at.load(from), wide); });
    block(begin, size, wide);
  }
}

template <class T>
void value_range(ActivationKind kind, const T* x, int64_t n, T* y) {
  HWY_ALIGN float f[kBlock];
  for_blocks(x, n, [&](int64_t begin, int64_t size, const float* wide) DS_SIMD_BODY {
    values_of<kRough<T>>(kind, wide, size, f);
    simd::map<T>(
        size, [&](auto at) DS_SIMD_BODY { return at.load_scratch(f); }, y + begin);
  });
}

template <class T>
void derivative_range(ActivationKind kind, const T* dy, const T* x, int64_t n, T* dx) {
  HWY_ALIGN float f[kBlock];
  HWY_ALIGN float slopes[kBlock];
  for_blocks(x, n, [&](int64_t begin, int64_t size, const float* wide) DS_SIMD_BODY {
    both_of<kRough<T>>(kind, wide, size, f, slopes);
    const T* g = dy + begin;
    simd::map<T>(
        size, [&](auto at) DS_SIMD_BODY { return hn::Mul(at.load(g), at.load_scratch(slopes)); },
        dx + begin);
  });
}

template <class T>
void gated_range(ActivationKind kind, const T* gate, const T* up, int64_t n, T* y) {
  HWY_ALIGN float f[kBlock];
  for_blocks(gate, n, [&](int64_t begin, int64_t size, const float* wide) DS_SIMD_BODY {
    values_of<kRough<T>>(kind, wide, size, f);
    const T* u = up + begin;
    simd::map<T>(
        size, [&](auto at) DS_SIMD_BODY { return hn::Mul(at.load_scratch(f), at.load(u)); },
        y + begin);
  });
}

template <class T>
void gated_backward_range(ActivationKind kind, const T* dy, const T* gate, const T* up, int64_t n,
                          T* dgate, T* dup) {
  HWY_ALIGN float f[kBlock];
  HWY_ALIGN float slopes[kBlock];
  for_blocks(gate, n, [&](int64_t begin, int64_t size, const float* wide) DS_SIMD_BODY {
    both_of<kRough<T>>(kind, wide, size, f, slopes);
    simd::map<T>(
        size,
        [&](auto at) DS_SIMD_BODY {
          const VF g = at.load(dy + begin), u = at.load(up + begin);
          return simd::Results<2>{hn::Mul(hn::Mul(g, u), at.load_scratch(slopes)),
                                  hn::Mul(g, at.load_scratch(f))};
        },
        dgate + begin, dup + begin);
  });
}

// What is exported, with pointers to elements of the type that is named.

void value_any(FloatType type, ActivationKind kind, const void* x, int64_t n, void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    value_range(kind, static_cast<const T*>(x), n, static_cast<T*>(y));
  });
}
void derivative_any(FloatType type, ActivationKind kind, const void* dy, const void* x, int64_t n,
                    void* dx) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    derivative_range(kind, static_cast<const T*>(dy), static_cast<const T*>(x), n,
                     static_cast<T*>(dx));
  });
}
void gated_any(FloatType type, ActivationKind kind, const void* gate, const void* up, int64_t n,
               void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    gated_range(kind, static_cast<const T*>(gate), static_cast<const T*>(up), n,
                static_cast<T*>(y));
  });
}
// One row.
void gated_backward_any(FloatType type, const GatedActivationBackward<void>& row) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    gated_backward_range(row.kind, static_cast<const T*>(row.dy.data),
                         static_cast<const T*>(row.gate.data), static_cast<const T*>(row.up.data),
                         row.cols, static_cast<T*>(row.dgate.data), static_cast<T*>(row.dup.data));
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
    (kFloatType<T>, {.kind = call.kind,
                     .rows = 1,
                     .cols = count,
                     .dy = {at(call.dy), 0},
                     .gate = {at(call.gate), 0},
                     .up = {at(call.up), 0},
                     .dgate = {at(call.dgate), 0},
                     .dup = {at(call.dup), 0}});
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
