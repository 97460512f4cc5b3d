// Rotary position embedding with Highway.
#include "kernels/rotary/rotary.h"

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotary/rotary_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// Pairs (i, i + half) of one head.
template <class T>
HWY_INLINE void turn_halves(const T* x, const float* cos, const float* sin, float sign,
                            int64_t half, T* y) {
  const DF d;
  const VF direction = hn::Set(d, sign);
  simd::for_vectors(half, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF c = simd::load_n(d, cos + i, count);
    const VF s = hn::Mul(simd::load_n(d, sin + i, count), direction);
    const VF a = simd::load_n(d, x + i, count), b = simd::load_n(d, x + half + i, count);
    simd::store_n(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, y + i, count);
    simd::store_n(hn::MulAdd(a, s, hn::Mul(b, c)), d, y + half + i, count);
  });
}

// Pairs of neighbours among n channels, with cosines doubled and sines doubled as (-s, s).
template <class T>
HWY_INLINE void turn_neighbours(const T* x, const float* cos, const float* sin, int64_t n, T* y) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF v = simd::load_n(d, x + i, count);
    const VF c = simd::load_n(d, cos + i, count), s = simd::load_n(d, sin + i, count);
    simd::store_n(hn::MulAdd(hn::Shuffle2301(v), s, hn::Mul(v, c)), d, y + i, count);
  });
}

template <class T>
void turn_tokens(const Rotary<T>& call, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 512;  // channels whose doubled cosines and sines are kept
  const float sign = call.inverse ? -1.0f : 1.0f;
  const int64_t half = call.rotary_dim / 2, rest = call.head_dim - call.rotary_dim;
  float cos[kBlock], sin[kBlock];
  for (int64_t token = begin; token < end; ++token) {
    const int64_t b = token / call.tokens, t = token % call.tokens;
    const T* x = call.x.at(b, t);
    T* y = call.y.at(b, t);
    const float* cos_row = call.cos + call.positions[token] * half;
    const float* sin_row = call.sin + call.positions[token] * half;
    for (int64_t h = 0; !call.interleaved && h < call.heads; ++h) {
      turn_halves(x + h * call.x.head, cos_row, sin_row, sign, half, y + h * call.y.head);
    }
    for (int64_t from = 0; call.interleaved && from < call.rotary_dim; from += kBlock) {
      const int64_t n = std::min(kBlock, call.rotary_dim - from);
      for (int64_t i = 0; i < n; i += 2) {
        const int64_t at = (from + i) / 2;
        cos[i] = cos[i + 1] = cos_row[at];
        sin[i + 1] = sign * sin_row[at];
        sin[i] = -sin[i + 1];
      }
      for (int64_t h = 0; h < call.heads; ++h) {
        turn_neighbours(x + h * call.x.head + from, cos, sin, n, y + h * call.y.head + from);
      }
    }
    for (int64_t h = 0; x != y && rest > 0 && h < call.heads; ++h) {
      std::memcpy(y + h * call.y.head + call.rotary_dim, x + h * call.x.head + call.rotary_dim,
                  static_cast<size_t>(rest) * sizeof(T));
    }
  }
}

void turn_f32(const Rotary<float>& call, int64_t begin, int64_t end) {
  turn_tokens(call, begin, end);
}
void turn_bf16(const Rotary<bfloat16>& call, int64_t begin, int64_t end) {
  turn_tokens(call, begin, end);
}
void turn_f16(const Rotary<float16>& call, int64_t begin, int64_t end) {
  turn_tokens(call, begin, end);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(turn_f32);
HWY_EXPORT(turn_bf16);
HWY_EXPORT(turn_f16);

template <class T, class Turn>
void launch(const Rotary<T>& call, ThreadPool& pool, const Turn& turn) {
  constexpr int64_t kElements = 16384;
  const int64_t per_token = std::max<int64_t>(1, call.heads * call.head_dim);
  pool.for_range(call.batch * call.tokens, std::max<int64_t>(1, kElements / per_token),
                 [&](int64_t begin, int64_t end) { turn(call, begin, end); });
}

}  // namespace

template <>
void rotary(const Rotary<float>& call, ThreadPool& pool) {
  launch(call, pool, HWY_DYNAMIC_DISPATCH(turn_f32));
}
template <>
void rotary(const Rotary<bfloat16>& call, ThreadPool& pool) {
  launch(call, pool, HWY_DYNAMIC_DISPATCH(turn_bf16));
}
template <>
void rotary(const Rotary<float16>& call, ThreadPool& pool) {
  launch(call, pool, HWY_DYNAMIC_DISPATCH(turn_f16));
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
