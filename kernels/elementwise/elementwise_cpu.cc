// The element-wise operators with Highway.
#include "kernels/elementwise/elementwise.h"

#include <cstring>
#include <type_traits>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/elementwise_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

template <class A, class Y>
void add_range(const A* a, const Y* b, int64_t n, Y* y) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF s = hn::Add(simd::load_n(d, a + i, count), simd::load_n(d, b + i, count));
    simd::store_n(s, d, y + i, count);
  });
}
void add_f32(const float* a, const float* b, int64_t n, float* y) { add_range(a, b, n, y); }
void add_bf16(const bfloat16* a, const bfloat16* b, int64_t n, bfloat16* y) {
  add_range(a, b, n, y);
}
void add_mixed(const bfloat16* a, const float* b, int64_t n, float* y) { add_range(a, b, n, y); }

template <class T>
void scale_range(const T* x, float factor, int64_t n, T* y) {
  const DF d;
  const VF f = hn::Set(d, factor);
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(hn::Mul(f, simd::load_n(d, x + i, count)), d, y + i, count);
  });
}
void scale_f32(const float* x, float factor, int64_t n, float* y) { scale_range(x, factor, n, y); }
void scale_bf16(const bfloat16* x, float factor, int64_t n, bfloat16* y) {
  scale_range(x, factor, n, y);
}

template <class T>
void fill_range(float value, int64_t n, T* y) {
  const DF d;
  const VF v = hn::Set(d, value);
  simd::for_vectors(n,
                    [&](int64_t i, auto count) DS_SIMD_BODY { simd::store_n(v, d, y + i, count); });
}
void fill_f32(float value, int64_t n, float* y) { fill_range(value, n, y); }
void fill_bf16(float value, int64_t n, bfloat16* y) { fill_range(value, n, y); }

template <class X, class Y>
void convert_range(const X* x, int64_t n, Y* y) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(simd::load_n(d, x + i, count), d, y + i, count);
  });
}
void narrow(const float* x, int64_t n, bfloat16* y) { convert_range(x, n, y); }
void widen(const bfloat16* x, int64_t n, float* y) { convert_range(x, n, y); }

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(add_f32);
HWY_EXPORT(add_bf16);
HWY_EXPORT(add_mixed);
HWY_EXPORT(scale_f32);
HWY_EXPORT(scale_bf16);
HWY_EXPORT(fill_f32);
HWY_EXPORT(fill_bf16);
HWY_EXPORT(narrow);
HWY_EXPORT(widen);

// Large enough to pay for waking a thread, small enough to balance.
constexpr int64_t kGrain = int64_t{1} << 15;

void convert(const float* x, int64_t n, float* y) {
  if (n > 0) std::memcpy(y, x, static_cast<size_t>(n) * sizeof(*x));
}
void convert(const bfloat16* x, int64_t n, bfloat16* y) {
  if (n > 0) std::memcpy(y, x, static_cast<size_t>(n) * sizeof(*x));
}
void convert(const float* x, int64_t n, bfloat16* y) { HWY_DYNAMIC_DISPATCH(narrow)(x, n, y); }
void convert(const bfloat16* x, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(widen)(x, n, y); }

template <class X, class Y>
Y converted(X x) {
  if constexpr (std::is_same_v<X, Y>) {
    return x;
  } else {
    return from_float<Y>(to_float(x));
  }
}

template <class X, class Y>
void cast_flat(const X* x, int64_t n, Y* y, ThreadPool& pool) {
  pool.for_range(n, kGrain,
                 [&](int64_t begin, int64_t end) { convert(x + begin, end - begin, y + begin); });
}

// Whole innermost rows per chunk; the outer indices advance like an odometer.
template <class X, class Y>
void cast_strided(const X* x, const Strided& given, Y* y, ThreadPool& pool) {
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

}  // namespace

void add(const float* a, const float* b, int64_t n, float* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_f32)(a + begin, b + begin, end - begin, y + begin);
  });
}
void add(const bfloat16* a, const bfloat16* b, int64_t n, bfloat16* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_bf16)(a + begin, b + begin, end - begin, y + begin);
  });
}

void scale(const float* x, float factor, int64_t n, float* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_f32)(x + begin, factor, end - begin, y + begin);
  });
}
void scale(const bfloat16* x, float factor, int64_t n, bfloat16* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_bf16)(x + begin, factor, end - begin, y + begin);
  });
}

void fill(float value, int64_t n, float* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(fill_f32)(value, end - begin, y + begin);
  });
}
void fill(float value, int64_t n, bfloat16* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(fill_bf16)(value, end - begin, y + begin);
  });
}

void accumulate(const float* x, int64_t n, float* y, ThreadPool& pool) { add(x, y, n, y, pool); }
void accumulate(const bfloat16* x, int64_t n, float* y, ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_mixed)(x + begin, y + begin, end - begin, y + begin);
  });
}

void cast(const float* x, int64_t n, float* y, ThreadPool& pool) { cast_flat(x, n, y, pool); }
void cast(const float* x, int64_t n, bfloat16* y, ThreadPool& pool) { cast_flat(x, n, y, pool); }
void cast(const bfloat16* x, int64_t n, float* y, ThreadPool& pool) { cast_flat(x, n, y, pool); }
void cast(const bfloat16* x, int64_t n, bfloat16* y, ThreadPool& pool) { cast_flat(x, n, y, pool); }

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

void cast(const float* x, const Strided& shape, float* y, ThreadPool& pool) {
  cast_strided(x, shape, y, pool);
}
void cast(const float* x, const Strided& shape, bfloat16* y, ThreadPool& pool) {
  cast_strided(x, shape, y, pool);
}
void cast(const bfloat16* x, const Strided& shape, float* y, ThreadPool& pool) {
  cast_strided(x, shape, y, pool);
}
void cast(const bfloat16* x, const Strided& shape, bfloat16* y, ThreadPool& pool) {
  cast_strided(x, shape, y, pool);
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
