// Vector code for rows between tokens and experts. Each output row is one thread's, and a token's
// routes are added in their order, so results do not depend on the number of threads.
#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/moe/routes.h"

#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/rows_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// Null where the route has no row that is there.
template <class T>
const T* row_of(const ExpertRows& from, int32_t expert, int32_t row) {
  if (expert < 0 || from.bases[expert] == nullptr) return nullptr;
  return static_cast<const T*>(from.bases[expert]) + (row - from.offsets[expert]) * from.width;
}

template <class T>
void gather_scaled(const GatherRows& call, int64_t begin, int64_t end) {
  const DF d;
  for (int64_t row = begin; row < end; ++row) {
    const int32_t route = call.routes[row];
    const T* const x = static_cast<const T*>(call.x) + route / call.choices * call.width;
    T* const out = static_cast<T*>(call.out) + row * call.width;
    const VF weight = hn::Set(d, call.weights[route]);
    simd::for_vectors(call.width, [&](int64_t i, auto count) DS_SIMD_BODY {
      simd::store_n(hn::Mul(simd::load_n(d, x + i, count), weight), d, out + i, count);
    });
  }
}

template <class T>
void sum_token(const SumRows& call, int64_t token, T* y) {
  const DF d;
  const int64_t width = call.from.width, first = token * call.choices;
  simd::for_vectors(width, [&](int64_t i, auto count) DS_SIMD_BODY {
    VF sum = hn::Zero(d);
    for (int64_t j = first; j < first + call.choices; ++j) {
      const T* const row = row_of<T>(call.from, call.chosen[j], call.rows[j]);
      if (row == nullptr) continue;
      const VF weight = hn::Set(d, call.weights != nullptr ? call.weights[j] : 1.0f);
      sum = hn::Add(sum, hn::Mul(weight, simd::load_n(d, row + i, count)));
    }
    simd::store_n(sum, d, y + i, count);
  });
}

template <class T>
float dot(const T* a, const T* b, int64_t n) {
  const DF d;
  return simd::sum_over(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    return hn::Mul(simd::load_n(d, a + i, count), simd::load_n(d, b + i, count));
  });
}

// What is exported: rows or tokens [begin, end).

void gather_any(const GatherRows& call, int64_t begin, int64_t end) {
  with_float_type(call.type, [&](auto t) { gather_scaled<decltype(t)>(call, begin, end); });
}

void sum_any(const SumRows& call, int64_t begin, int64_t end) {
  with_float_type(call.from.type, [&](auto t) {
    using T = decltype(t);
    for (int64_t token = begin; token < end; ++token) {
      sum_token(call, token, static_cast<T*>(call.y) + token * call.from.width);
    }
  });
}

void dots_any(const RouteDots& call, int64_t begin, int64_t end) {
  with_float_type(call.from.type, [&](auto t) {
    using T = decltype(t);
    for (int64_t j = begin * call.choices; j < end * call.choices; ++j) {
      const T* const row = row_of<T>(call.from, call.chosen[j], call.rows[j]);
      const T* const x = static_cast<const T*>(call.x) + j / call.choices * call.from.width;
      call.dots[j] = row == nullptr ? 0.0f : dot(row, x, call.from.width);
    }
  });
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(gather_any);
HWY_EXPORT(sum_any);
HWY_EXPORT(dots_any);

// Rows that one thread takes at a time.
int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
}

}  // namespace

void gather_rows(const GatherRows& call, ThreadPool& pool) {
  const int64_t bytes = call.width * (call.type == FloatType::kFloat32 ? 4 : 2);
  pool.for_range(call.rows, row_grain(call.width), [&](int64_t begin, int64_t end) {
    if (call.weights != nullptr) return HWY_DYNAMIC_DISPATCH(gather_any)(call, begin, end);
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(static_cast<std::byte*>(call.out) + row * bytes,
                  static_cast<const std::byte*>(call.x) + call.routes[row] / call.choices * bytes,
                  static_cast<size_t>(bytes));
    }
  });
}

void sum_rows(const SumRows& call, ThreadPool& pool) {
  pool.for_range(call.tokens, row_grain(call.from.width * call.choices),
                 [&](int64_t begin, int64_t end) {
                   HWY_DYNAMIC_DISPATCH(sum_any)(call, begin, end);
                 });
}

void route_dots(const RouteDots& call, ThreadPool& pool) {
  pool.for_range(call.tokens, row_grain(call.from.width * call.choices),
                 [&](int64_t begin, int64_t end) {
                   HWY_DYNAMIC_DISPATCH(dots_any)(call, begin, end);
                 });
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
