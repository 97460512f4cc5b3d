// Vector code of bias + GELU; the functions are in functions-inl.h.
#include "kernels/activation/bias_gelu.h"

#include <algorithm>
#include <type_traits>

#include "kernels/float_type.h"
#include "kernels/reduce/reduce.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/bias_gelu_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/activation/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
template <class T>
inline constexpr bool kRough = std::is_same_v<T, bfloat16>;

template <class Form, class T>
HWY_INLINE void forward_row(const T* x, const T* bias, int64_t n, T* y) {
  const DF d;
  const auto with = [&](const auto& biased) DS_SIMD_BODY {
    simd::map<T>(
        n, [&](auto at) DS_SIMD_BODY { return Form::template value<kRough<T>>(d, biased(at)); }, y);
  };
  if (bias != nullptr) {
    with([&](auto at) DS_SIMD_BODY { return hn::Add(at.load(x), at.load(bias)); });
  } else {
    with([&](auto at) DS_SIMD_BODY { return at.load(x); });
  }
}

// `sums` is scratch in the order of lanes, or null.
template <class Form, class T>
HWY_INLINE void backward_row(const T* dy, const T* x, const T* bias, int64_t n, T* dx,
                             float* sums) {
  const DF d;
  simd::map<T>(
      n,
      [&](auto at) DS_SIMD_BODY {
        VF v = at.load(x);
        if (bias != nullptr) v = hn::Add(v, at.load(bias));
        const VF g = hn::Mul(at.load(dy), Form::template derivative<kRough<T>>(d, v));
        if (sums != nullptr) at.store_scratch(hn::Add(at.load_scratch(sums), g), sums);
        return g;
      },
      dx);
}

// What is exported, with pointers to elements of the type that is named.

void forward_any(FloatType type, const void* x, const void* bias, GeluForm form, int64_t n,
                 void* y) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    const auto *from = static_cast<const T*>(x), *b = static_cast<const T*>(bias);
    if (form == GeluForm::kTanh) {
      forward_row<GeluTanh>(from, b, n, static_cast<T*>(y));
    } else {
      forward_row<GeluErf>(from, b, n, static_cast<T*>(y));
    }
  });
}

// Rows of n elements; sums[n] are set to those of dx unless null.
void backward_any(FloatType type, const void* dy, const void* x, const void* bias, GeluForm form,
                  int64_t rows, int64_t n, void* dx, float* sums) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    if (sums != nullptr) std::fill(sums, sums + n, 0.0f);
    for (int64_t at = 0; at < rows * n; at += n) {
      const auto *g = static_cast<const T*>(dy) + at, *from = static_cast<const T*>(x) + at;
      const auto* b = static_cast<const T*>(bias);
      if (form == GeluForm::kTanh) {
        backward_row<GeluTanh>(g, from, b, n, static_cast<T*>(dx) + at, sums);
      } else {
        backward_row<GeluErf>(g, from, b, n, static_cast<T*>(dx) + at, sums);
      }
    }
    if (sums != nullptr && simd::kSplit<T>) simd::unsplit(n, sums);
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

constexpr int64_t kGrain = 16384;  // elements per chunk

// Calls row(first element, column, count) for the parts of rows inside each chunk of elements.
template <class Row>
void for_row_parts(int64_t elements, int64_t columns, ThreadPool& pool, const Row& row) {
  pool.for_range(elements, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t column = begin % columns;
      const int64_t count = std::min(columns - column, end - begin);
      row(begin, column, count);
      begin += count;
    }
  });
}

// Rows per chunk of the backward pass with a bias gradient: at most 64 chunks, so that the partial
// sums stay small beside the input.
int64_t rows_per_chunk(int64_t rows, int64_t columns) {
  constexpr int64_t kMaxChunks = 64;
  return std::max(
      {int64_t{1}, kGrain / std::max<int64_t>(columns, 1), (rows + kMaxChunks - 1) / kMaxChunks});
}

}  // namespace

template <class T>
void bias_gelu(const T* x, const T* bias, GeluForm form, int64_t rows, int64_t columns, T* y,
               ThreadPool& pool) {
  const int64_t elements = rows * columns;
  if (bias == nullptr) columns = elements;  // one long row
  for_row_parts(elements, columns, pool, [&](int64_t at, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(forward_any)
    (kFloatType<T>, x + at, bias != nullptr ? bias + column : nullptr, form, count, y + at);
  });
}

int64_t bias_gelu_chunks(int64_t rows, int64_t columns) {
  const int64_t grain = rows_per_chunk(rows, columns);
  return (rows + grain - 1) / grain;
}

template <class T>
void bias_gelu_backward(const T* dy, const T* x, const T* bias, GeluForm form, int64_t rows,
                        int64_t columns, T* dx, float* db, float* partials, ThreadPool& pool) {
  if (db == nullptr) {
    const int64_t elements = rows * columns;
    if (bias == nullptr) columns = elements;
    for_row_parts(elements, columns, pool, [&](int64_t at, int64_t column, int64_t count) {
      HWY_DYNAMIC_DISPATCH(backward_any)
      (kFloatType<T>, dy + at, x + at, bias != nullptr ? bias + column : nullptr, form, 1, count,
       dx + at, nullptr);
    });
    return;
  }
  const int64_t grain = rows_per_chunk(rows, columns);
  pool.for_range(rows, grain, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * columns;
    HWY_DYNAMIC_DISPATCH(backward_any)
    (kFloatType<T>, dy + at, x + at, bias, form, end - begin, columns, dx + at,
     partials + begin / grain * columns);
  });
  add_partial_sums(partials, bias_gelu_chunks(rows, columns), columns, db, pool);
}

template void bias_gelu(const float*, const float*, GeluForm, int64_t, int64_t, float*,
                        ThreadPool&);
template void bias_gelu(const bfloat16*, const bfloat16*, GeluForm, int64_t, int64_t, bfloat16*,
                        ThreadPool&);
template void bias_gelu(const float16*, const float16*, GeluForm, int64_t, int64_t, float16*,
                        ThreadPool&);
template void bias_gelu_backward(const float*, const float*, const float*, GeluForm, int64_t,
                                 int64_t, float*, float*, float*, ThreadPool&);
template void bias_gelu_backward(const bfloat16*, const bfloat16*, const bfloat16*, GeluForm,
                                 int64_t, int64_t, bfloat16*, float*, float*, ThreadPool&);
template void bias_gelu_backward(const float16*, const float16*, const float16*, GeluForm, int64_t,
                                 int64_t, float16*, float*, float*, ThreadPool&);

}  // namespace ds::kernels
#endif  // HWY_ONCE
