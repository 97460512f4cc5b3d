// The embedding with Highway.
#include "kernels/embedding/embedding.h"

#include <hwy/cache_control.h>

#include <cstring>

#include "base/thread_pool.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/embedding/embedding_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;

template <class T>
void add_rows(const T* a, const T* b, int64_t n, T* y) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const auto s = hn::Add(simd::load_n(d, a + i, count), simd::load_n(d, b + i, count));
    simd::store_n(s, d, y + i, count);
  });
}
void add_rows_f32(const float* a, const float* b, int64_t n, float* y) { add_rows(a, b, n, y); }
void add_rows_bf16(const bfloat16* a, const bfloat16* b, int64_t n, bfloat16* y) {
  add_rows(a, b, n, y);
}
void add_rows_f16(const float16* a, const float16* b, int64_t n, float16* y) {
  add_rows(a, b, n, y);
}

// `width` columns of every row. Rows of the table lie anywhere, so the one needed a few rounds
// later is fetched now.
template <class T>
void scatter_columns(const int32_t* ids, const T* dy, int64_t n, int64_t cols, int64_t width,
                     int32_t padding, float* dtable) {
  constexpr int64_t kAhead = 8;
  const DF d;
  for (int64_t row = 0; row < n; ++row) {
    if (row + kAhead < n) {
      const float* next = dtable + ids[row + kAhead] * cols;
      for (int64_t j = 0; j < width; j += 16) hwy::Prefetch(next + j);
    }
    if (ids[row] == padding) continue;
    const T* from = dy + row * cols;
    float* to = dtable + ids[row] * cols;
    simd::for_vectors(width, [&](int64_t j, auto count) DS_SIMD_BODY {
      const auto s = hn::Add(simd::load_n(d, to + j, count), simd::load_n(d, from + j, count));
      simd::store_n(s, d, to + j, count);
    });
  }
}
void scatter_f32(const int32_t* ids, const float* dy, int64_t n, int64_t cols, int64_t width,
                 int32_t padding, float* dtable) {
  scatter_columns(ids, dy, n, cols, width, padding, dtable);
}
void scatter_bf16(const int32_t* ids, const bfloat16* dy, int64_t n, int64_t cols, int64_t width,
                  int32_t padding, float* dtable) {
  scatter_columns(ids, dy, n, cols, width, padding, dtable);
}
void scatter_f16(const int32_t* ids, const float16* dy, int64_t n, int64_t cols, int64_t width,
                 int32_t padding, float* dtable) {
  scatter_columns(ids, dy, n, cols, width, padding, dtable);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(add_rows_f32);
HWY_EXPORT(add_rows_bf16);
HWY_EXPORT(add_rows_f16);
HWY_EXPORT(scatter_f32);
HWY_EXPORT(scatter_bf16);
HWY_EXPORT(scatter_f16);

template <class T, class AddRows>
void look_up(const Embedding<T>& call, ThreadPool& pool, const AddRows& add_rows) {
  const int64_t cols = call.cols;
  if (cols <= 0) return;
  constexpr int64_t kElements = 16384;
  const int64_t grain = cols >= kElements ? 1 : kElements / cols;
  pool.for_range(call.n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* row = call.table + call.ids[i] * cols;
      T* const to = call.y + i * cols;
      if (call.positions != nullptr) {
        add_rows(row, call.positions + call.position_ids[i] * cols, cols, to);
      } else {
        std::memcpy(to, row, static_cast<size_t>(cols) * sizeof(T));
      }
    }
  });
}

template <class T, class Scatter>
void scatter_rows(const EmbeddingBackward<T>& call, ThreadPool& pool, const Scatter& scatter) {
  constexpr int64_t kColumns = 128;
  pool.for_range(call.cols, kColumns, [&](int64_t begin, int64_t end) {
    scatter(call.ids, call.dy + begin, call.n, call.cols, end - begin, call.padding,
            call.dtable + begin);
  });
}

}  // namespace

int64_t first_id_outside(const int32_t* ids, int64_t n, int64_t limit) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || ids[i] >= limit) return i;
  }
  return -1;
}

void embedding(const Embedding<float>& call, ThreadPool& pool) {
  look_up(call, pool, HWY_DYNAMIC_DISPATCH(add_rows_f32));
}
void embedding(const Embedding<bfloat16>& call, ThreadPool& pool) {
  look_up(call, pool, HWY_DYNAMIC_DISPATCH(add_rows_bf16));
}
void embedding(const Embedding<float16>& call, ThreadPool& pool) {
  look_up(call, pool, HWY_DYNAMIC_DISPATCH(add_rows_f16));
}

void embedding_backward(const EmbeddingBackward<float>& call, ThreadPool& pool) {
  scatter_rows(call, pool, HWY_DYNAMIC_DISPATCH(scatter_f32));
}
void embedding_backward(const EmbeddingBackward<bfloat16>& call, ThreadPool& pool) {
  scatter_rows(call, pool, HWY_DYNAMIC_DISPATCH(scatter_bf16));
}
void embedding_backward(const EmbeddingBackward<float16>& call, ThreadPool& pool) {
  scatter_rows(call, pool, HWY_DYNAMIC_DISPATCH(scatter_f16));
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
