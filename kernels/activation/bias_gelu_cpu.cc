// Vector code of bias + GELU; the functions are in functions-inl.h.
#include "kernels/activation/bias_gelu.h"

#include <algorithm>

#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/bias_gelu_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/activation/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
template <class Form, class T>
HWY_INLINE void forward_row(const T* x, const T* bias, int64_t n, T* y) {
  const DF d;
  simd::for_vectors(n, [&](int64_t j, auto count) DS_SIMD_BODY {
    VF v = simd::load_n(d, x + j, count);
    if (bias != nullptr) v = hn::Add(v, simd::load_n(d, bias + j, count));
    simd::store_n(Form::value(d, v), d, y + j, count);
  });
}

// `sums` may be null.
template <class Form, class T>
HWY_INLINE void backward_row(const T* dy, const T* x, const T* bias, int64_t n, T* dx,
                             float* sums) {
  const DF d;
  simd::for_vectors(n, [&](int64_t j, auto count) DS_SIMD_BODY {
    VF v = simd::load_n(d, x + j, count);
    if (bias != nullptr) v = hn::Add(v, simd::load_n(d, bias + j, count));
    const VF g = hn::Mul(simd::load_n(d, dy + j, count), Form::derivative(d, v));
    simd::store_n(g, d, dx + j, count);
    if (sums != nullptr) {
      simd::store_n(hn::Add(simd::load_n(d, sums + j, count), g), d, sums + j, count);
    }
  });
}

template <class T>
void forward_any(const T* x, const T* bias, GeluForm form, int64_t n, T* y) {
  if (form == GeluForm::kTanh) {
    forward_row<GeluTanh>(x, bias, n, y);
  } else {
    forward_row<GeluErf>(x, bias, n, y);
  }
}

template <class T>
void backward_any(const T* dy, const T* x, const T* bias, GeluForm form, int64_t n, T* dx,
                  float* sums) {
  if (form == GeluForm::kTanh) {
    backward_row<GeluTanh>(dy, x, bias, n, dx, sums);
  } else {
    backward_row<GeluErf>(dy, x, bias, n, dx, sums);
  }
}

void forward_float(const float* x, const float* bias, GeluForm form, int64_t n, float* y) {
  forward_any(x, bias, form, n, y);
}
void forward_bfloat16(const bfloat16* x, const bfloat16* bias, GeluForm form, int64_t n,
                      bfloat16* y) {
  forward_any(x, bias, form, n, y);
}
void forward_float16(const float16* x, const float16* bias, GeluForm form, int64_t n, float16* y) {
  forward_any(x, bias, form, n, y);
}
void backward_float(const float* dy, const float* x, const float* bias, GeluForm form, int64_t n,
                    float* dx, float* sums) {
  backward_any(dy, x, bias, form, n, dx, sums);
}
void backward_bfloat16(const bfloat16* dy, const bfloat16* x, const bfloat16* bias, GeluForm form,
                       int64_t n, bfloat16* dx, float* sums) {
  backward_any(dy, x, bias, form, n, dx, sums);
}
void backward_float16(const float16* dy, const float16* x, const float16* bias, GeluForm form,
                      int64_t n, float16* dx, float* sums) {
  backward_any(dy, x, bias, form, n, dx, sums);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(forward_float);
HWY_EXPORT(forward_bfloat16);
HWY_EXPORT(forward_float16);
HWY_EXPORT(backward_float);
HWY_EXPORT(backward_bfloat16);
HWY_EXPORT(backward_float16);

void forward(const float* x, const float* bias, GeluForm form, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(forward_float)(x, bias, form, n, y);
}
void forward(const bfloat16* x, const bfloat16* bias, GeluForm form, int64_t n, bfloat16* y) {
  HWY_DYNAMIC_DISPATCH(forward_bfloat16)(x, bias, form, n, y);
}
void forward(const float16* x, const float16* bias, GeluForm form, int64_t n, float16* y) {
  HWY_DYNAMIC_DISPATCH(forward_float16)(x, bias, form, n, y);
}
void backward(const float* dy, const float* x, const float* bias, GeluForm form, int64_t n,
              float* dx, float* sums) {
  HWY_DYNAMIC_DISPATCH(backward_float)(dy, x, bias, form, n, dx, sums);
}
void backward(const bfloat16* dy, const bfloat16* x, const bfloat16* bias, GeluForm form, int64_t n,
              bfloat16* dx, float* sums) {
  HWY_DYNAMIC_DISPATCH(backward_bfloat16)(dy, x, bias, form, n, dx, sums);
}
void backward(const float16* dy, const float16* x, const float16* bias, GeluForm form, int64_t n,
              float16* dx, float* sums) {
  HWY_DYNAMIC_DISPATCH(backward_float16)(dy, x, bias, form, n, dx, sums);
}

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
    forward(x + at, bias != nullptr ? bias + column : nullptr, form, count, y + at);
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
      backward(dy + at, x + at, bias != nullptr ? bias + column : nullptr, form, count, dx + at,
               nullptr);
    });
    return;
  }
  const int64_t grain = rows_per_chunk(rows, columns);
  pool.for_range(rows, grain, [&](int64_t begin, int64_t end) {
    float* sums = partials + begin / grain * columns;
    std::fill(sums, sums + columns, 0.0f);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * columns;
      backward(dy + at, x + at, bias, form, columns, dx + at, sums);
    }
  });
  const int64_t chunks = bias_gelu_chunks(rows, columns);
  pool.for_range(columns, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* sums = partials + chunk * columns;
      for (int64_t j = begin; j < end; ++j) db[j] += sums[j];
    }
  });
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
