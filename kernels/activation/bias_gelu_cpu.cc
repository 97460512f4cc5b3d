// Vector code of bias + GELU; the functions are in functions-inl.h.
#include "kernels/activation/bias_gelu.h"

#include <algorithm>
#include <type_traits>

#include "base/thread_pool.h"
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

// One row.
void forward_any(FloatType type, const BiasGelu<void>& row) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    const auto *x = static_cast<const T*>(row.x), *bias = static_cast<const T*>(row.bias);
    if (row.form == GeluForm::kTanh) {
      forward_row<GeluTanh>(x, bias, row.columns, static_cast<T*>(row.y));
    } else {
      forward_row<GeluErf>(x, bias, row.columns, static_cast<T*>(row.y));
    }
  });
}

// `partials` (as many numbers as columns) are set to the sums of dx unless null.
void backward_any(FloatType type, const BiasGeluBackward<void>& chunk) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    const int64_t n = chunk.columns;
    float* const sums = chunk.partials;
    if (sums != nullptr) std::fill(sums, sums + n, 0.0f);
    for (int64_t at = 0; at < chunk.rows * n; at += n) {
      const auto *dy = static_cast<const T*>(chunk.dy) + at,
                 *x = static_cast<const T*>(chunk.x) + at;
      const auto* bias = static_cast<const T*>(chunk.bias);
      if (chunk.form == GeluForm::kTanh) {
        backward_row<GeluTanh>(dy, x, bias, n, static_cast<T*>(chunk.dx) + at, sums);
      } else {
        backward_row<GeluErf>(dy, x, bias, n, static_cast<T*>(chunk.dx) + at, sums);
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
void bias_gelu(const BiasGelu<T>& call, ThreadPool& pool) {
  const int64_t elements = call.rows * call.columns;
  const int64_t columns = call.bias != nullptr ? call.columns : elements;  // or one long row
  for_row_parts(elements, columns, pool, [&](int64_t at, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(forward_any)
    (kFloatType<T>, {.form = call.form,
                     .rows = 1,
                     .columns = count,
                     .x = call.x + at,
                     .bias = call.bias != nullptr ? call.bias + column : nullptr,
                     .y = call.y + at});
  });
}

int64_t bias_gelu_chunks(int64_t rows, int64_t columns) {
  const int64_t grain = rows_per_chunk(rows, columns);
  return (rows + grain - 1) / grain;
}

template <class T>
void bias_gelu_backward(const BiasGeluBackward<T>& call, ThreadPool& pool) {
  if (call.db == nullptr) {
    const int64_t elements = call.rows * call.columns;
    const int64_t columns = call.bias != nullptr ? call.columns : elements;
    for_row_parts(elements, columns, pool, [&](int64_t at, int64_t column, int64_t count) {
      HWY_DYNAMIC_DISPATCH(backward_any)
      (kFloatType<T>, {.form = call.form,
                       .rows = 1,
                       .columns = count,
                       .dy = call.dy + at,
                       .x = call.x + at,
                       .bias = call.bias != nullptr ? call.bias + column : nullptr,
                       .dx = call.dx + at});
    });
    return;
  }
  const int64_t grain = rows_per_chunk(call.rows, call.columns);
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * call.columns;
    HWY_DYNAMIC_DISPATCH(backward_any)
    (kFloatType<T>, {.form = call.form,
                     .rows = end - begin,
                     .columns = call.columns,
                     .dy = call.dy + at,
                     .x = call.x + at,
                     .bias = call.bias,
                     .dx = call.dx + at,
                     .partials = call.partials + begin / grain * call.columns});
  });
  add_partial_sums(call.partials, bias_gelu_chunks(call.rows, call.columns), call.columns, call.db,
                   pool);
}

#define DS_ONE_TYPE(T)                                      \
  template void bias_gelu(const BiasGelu<T>&, ThreadPool&); \
  template void bias_gelu_backward(const BiasGeluBackward<T>&, ThreadPool&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
#endif  // HWY_ONCE
