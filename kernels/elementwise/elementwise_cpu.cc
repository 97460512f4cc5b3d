// The element-wise operators with Highway.
#include "kernels/elementwise/elementwise.h"

#include <cstring>
#include <type_traits>

#include "base/thread_pool.h"
#include "kernels/float_type.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/elementwise_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// The order of places of a loop over these types: see kernels/map-inl.h.
template <class X, class Y>
using Both = std::conditional_t<std::is_same_v<X, Y>, X, float>;

template <class T>
void add_range(const T* a, const T* b, int64_t n, T* y) {
  simd::map_exact<T>(
      n, [&](auto at) DS_SIMD_BODY { return hn::Add(at.load(a), at.load(b)); }, y);
}

template <class T>
void scale_range(const T* x, float factor, int64_t n, T* y) {
  const VF f = hn::Set(DF(), factor);
  simd::map_exact<T>(
      n, [&](auto at) DS_SIMD_BODY { return hn::Mul(f, at.load(x)); }, y);
}

template <class T>
void fill_range(float value, int64_t n, T* y) {
  const VF v = hn::Set(DF(), value);
  simd::map_exact<T>(
      n, [&](auto) DS_SIMD_BODY { return v; }, y);
}

template <class X, class Y>
void accumulate_range(const X* x, float factor, int64_t n, Y* sum) {
  const VF f = hn::Set(DF(), factor);
  simd::map_exact<Both<X, Y>>(
      n, [&](auto at) DS_SIMD_BODY { return hn::MulAdd(f, at.load(x), at.load(sum)); }, sum);
}

template <class X, class Y>
void convert_range(const X* x, int64_t n, Y* y) {
  simd::map_exact<Both<X, Y>>(
      n, [&](auto at) DS_SIMD_BODY { return at.load(x); }, y);
}

// What is exported, with pointers to elements of the types that are named.

void add_any(FloatType type, const void* a, const void* b, int64_t n, void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    add_range(static_cast<const T*>(a), static_cast<const T*>(b), n, static_cast<T*>(y));
  });
}
void scale_any(FloatType type, const void* x, float factor, int64_t n, void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    scale_range(static_cast<const T*>(x), factor, n, static_cast<T*>(y));
  });
}
void fill_any(FloatType type, float value, int64_t n, void* y) {
  with_float_type(type, [&](auto t) { fill_range(value, n, static_cast<decltype(t)*>(y)); });
}
void accumulate_any(FloatType x_type, FloatType y_type, const void* x, float factor, int64_t n,
                    void* sum) {
  with_float_type(x_type, [&](auto from) {
    with_float_type(y_type, [&](auto to) {
      accumulate_range(static_cast<const decltype(from)*>(x), factor, n,
                       static_cast<decltype(to)*>(sum));
    });
  });
}
void convert_any(FloatType x_type, FloatType y_type, const void* x, int64_t n, void* y) {
  with_float_type(x_type, [&](auto from) {
    with_float_type(y_type, [&](auto to) {
      convert_range(static_cast<const decltype(from)*>(x), n, static_cast<decltype(to)*>(y));
    });
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(add_any);
HWY_EXPORT(scale_any);
HWY_EXPORT(fill_any);
HWY_EXPORT(accumulate_any);
HWY_EXPORT(convert_any);

// Large enough to pay for waking a thread, small enough to balance.
constexpr int64_t kGrain = int64_t{1} << 15;

template <class X, class Y>
void convert(const X* x, int64_t n, Y* y) {
  if constexpr (std::is_same_v<X, Y>) {
    if (n > 0) std::memcpy(y, x, static_cast<size_t>(n) * sizeof(*x));
  } else {
    HWY_DYNAMIC_DISPATCH(convert_any)(kFloatType<X>, kFloatType<Y>, x, n, y);
  }
}

template <class X, class Y>
Y converted(X x) {
  if constexpr (std::is_same_v<X, Y>) {
    return x;
  } else {
    return from_float<Y>(to_float(x));
  }
}

}  // namespace

template <class T>
void add(const T* a, const T* b, int64_t n, T* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_any)(kFloatType<T>, a + begin, b + begin, end - begin, y + begin);
  });
}

template <class T>
void scale(const T* x, float factor, int64_t n, T* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_any)(kFloatType<T>, x + begin, factor, end - begin, y + begin);
  });
}

template <class T>
void fill(float value, int64_t n, T* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(fill_any)(kFloatType<T>, value, end - begin, y + begin);
  });
}

template <class X, class Y>
void accumulate(const X* x, float factor, int64_t n, Y* sum, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(accumulate_any)
    (kFloatType<X>, kFloatType<Y>, x + begin, factor, end - begin, sum + begin);
  });
}

template <class X, class Y>
void cast(const X* x, int64_t n, Y* y, ThreadPool& pool) {
  pool.for_range(n, kGrain,
                 [&](int64_t begin, int64_t end) { convert(x + begin, end - begin, y + begin); });
}

Strided joined(const Strided& shape) {
  Strided out;
  for (int i = 0; i < shape.dims; ++i) {
    if (shape.sizes[i] == 1) continue;
    const int last = out.dims - 1;
    if (out.dims > 0 && out.strides[last] == shape.strides[i] * shape.sizes[i]) {
      out.sizes[last] *= shape.sizes[i];
      out.strides[last] = shape.strides[i];
    } else {
      out.sizes[out.dims] = shape.sizes[i];
      out.strides[out.dims++] = shape.strides[i];
    }
  }
  if (out.dims == 0) {
    out.dims = 1;
    out.sizes[0] = out.strides[0] = 1;
  }
  return out;
}

// Whole innermost rows per chunk; the outer indices advance like an odometer.
template <class X, class Y>
void cast(const X* x, const Strided& given, Y* y, ThreadPool& pool) {
  const int64_t total = given.elements();
  if (total == 0) return;
  const Strided shape = joined(given);
  const int inner = shape.dims - 1;
  const int64_t row = shape.sizes[inner], step = shape.strides[inner];
  const int64_t rows = total / row;
  const int64_t grain = row >= kGrain ? 1 : kGrain / row;
  pool.for_range(rows, grain, [&](int64_t begin, int64_t end) {
    int64_t index[Strided::kMaxDims] = {};
    int64_t rest = begin, offset = 0;
    for (int i = inner - 1; i >= 0; --i) {
      index[i] = rest % shape.sizes[i];
      rest /= shape.sizes[i];
      offset += index[i] * shape.strides[i];
    }
    for (int64_t r = begin; r < end; ++r) {
      const X* from = x + offset;
      Y* to = y + r * row;
      if (step == 1) {
        convert(from, row, to);
      } else {
        for (int64_t i = 0; i < row; ++i) to[i] = converted<X, Y>(from[i * step]);
      }
      for (int i = inner - 1; i >= 0; --i) {
        offset += shape.strides[i];
        if (++index[i] < shape.sizes[i]) break;
        offset -= index[i] * shape.strides[i];
        index[i] = 0;
      }
    }
  });
}

#define DS_ONE_TYPE(T)                                             \
  template void add(const T*, const T*, int64_t, T*, ThreadPool&); \
  template void scale(const T*, float, int64_t, T*, ThreadPool&);  \
  template void fill(float, int64_t, T*, ThreadPool&);             \
  DS_TWO_TYPES(T, float) DS_TWO_TYPES(T, bfloat16) DS_TWO_TYPES(T, float16)
#define DS_TWO_TYPES(X, Y)                                             \
  template void accumulate(const X*, float, int64_t, Y*, ThreadPool&); \
  template void cast(const X*, int64_t, Y*, ThreadPool&);              \
  template void cast(const X*, const Strided&, Y*, ThreadPool&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE
#undef DS_TWO_TYPES

}  // namespace ds::kernels
#endif  // HWY_ONCE
