// Heads apart and together, one head's channels at a time.
#include "kernels/transform/heads.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/heads_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

template <class T>
void sums(const T* x, const T* bias, int64_t n, T* out) {
  const simd::DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const simd::VF sum =
        simd::hn::Add(simd::load_n(d, x + i, count), simd::load_n(d, bias + i, count));
    simd::store_n(sum, d, out + i, count);
  });
}
void add_bias(FloatType type, const void* x, const void* bias, int64_t n, void* out) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    sums(static_cast<const T*>(x), static_cast<const T*>(bias), n, static_cast<T*>(out));
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {

HWY_EXPORT(add_bias);

namespace {

// Calls piece(first element in the packed tensor, first element in the split one, column) for every
// head of the tokens [begin, end), counted over all samples.
template <class Piece>
void for_pieces(const HeadShape& s, int64_t begin, int64_t end, const Piece& piece) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t sample = row / s.tokens, token = row % s.tokens;
    for (int64_t part = 0; part < s.parts; ++part) {
      for (int64_t head = 0; head < s.heads; ++head) {
        const int64_t column = (part * s.heads + head) * s.size;
        const int64_t split_row = ((part * s.batch + sample) * s.heads + head) * s.tokens + token;
        piece(row * s.columns() + column, split_row * s.size, column);
      }
    }
  }
}

template <class Piece>
void run(const HeadShape& s, ThreadPool& pool, const Piece& piece) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, s.columns()));
  pool.for_range(s.batch * s.tokens, grain,
                 [&](int64_t begin, int64_t end) { for_pieces(s, begin, end, piece); });
}

}  // namespace

void split_heads(const HeadShape& shape, const void* packed, const void* bias, void* split,
                 ThreadPool& pool) {
  with_float_type(shape.type, [&](auto t) {
    using T = decltype(t);
    const auto *from = static_cast<const T*>(packed), *add = static_cast<const T*>(bias);
    auto* to = static_cast<T*>(split);
    run(shape, pool, [&](int64_t x, int64_t y, int64_t column) {
      if (add == nullptr) {
        std::copy_n(from + x, shape.size, to + y);
      } else {
        HWY_DYNAMIC_DISPATCH(add_bias)(shape.type, from + x, add + column, shape.size, to + y);
      }
    });
  });
}

void merge_heads(const HeadShape& shape, const void* split, void* packed, ThreadPool& pool) {
  with_float_type(shape.type, [&](auto t) {
    using T = decltype(t);
    run(shape, pool, [&](int64_t x, int64_t y, int64_t) {
      std::copy_n(static_cast<const T*>(split) + y, shape.size, static_cast<T*>(packed) + x);
    });
  });
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
