// Keys and values to 8-bit codes of a cache and back, on CPUs.
#include "kernels/attention/token_codes.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/quantize/rounding.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/token_codes_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/attention/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {

constexpr int64_t kElements = 16384;  // of a thread's part

// Writes the codes of a row and returns their scale.
template <class T>
HWY_INLINE float quantize_row(const T* x, int64_t size, int8_t* codes) {
  const simd::DF f;
  const int64_t lanes = simd::lanes(), whole = size / lanes * lanes;
  // 0, or NaN once a number was not finite: a maximum may lose it.
  simd::VF most = hwy::HWY_NAMESPACE::Zero(f), bad = most;
  const auto see = [&](simd::VF v) DS_SIMD_BODY {
    namespace hn = hwy::HWY_NAMESPACE;
    most = hn::Max(most, hn::Abs(v));
    bad = hn::MulAdd(v, hn::Zero(f), bad);
  };
  for (int64_t d = 0; d < whole; d += lanes) see(simd::load(f, x + d));
  if (whole < size) see(simd::load_n(f, x + whole, size - whole));
  const float scale = simd::max_of_lanes(f, most) / 127 + simd::sum_of_lanes(f, bad);
  const simd::VF inverse = hwy::HWY_NAMESPACE::Set(f, inverse_of(scale));
  const auto code = [&](simd::VF v) DS_SIMD_BODY {
    namespace hn = hwy::HWY_NAMESPACE;
    // The quotient of the largest may be a little above 127.
    const simd::VF most_code = hn::Set(f, 127.0f);
    return hn::Min(hn::Max(hn::Mul(v, inverse), hn::Neg(most_code)), most_code);
  };
  for (int64_t d = 0; d < whole; d += lanes) {
    simd::store_codes(code(simd::load(f, x + d)), f, codes + d);
  }
  if (whole < size) {
    simd::store_codes_n(code(simd::load_n(f, x + whole, size - whole)), f, codes + whole,
                        size - whole);
  }
  return scale;
}

template <class T>
void to_codes(ThreadPool& pool, const TokenCodes<T>& call) {
  const int64_t row = std::max<int64_t>(1, call.heads * call.size);
  pool.for_range(call.batch * call.tokens, std::max<int64_t>(1, kElements / row),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t token = begin; token < end; ++token) {
                     const int64_t b = token / call.tokens, t = token % call.tokens;
                     const int64_t past =
                         call.past_of_each == nullptr ? call.past : call.past_of_each[b];
                     for (int64_t h = 0; h < call.heads; ++h) {
                       *call.to.scale(b, past + t, h) =
                           quantize_row(call.x.at(b, t, h), call.size, call.to.row(b, past + t, h));
                     }
                   }
                 });
}

template <class T>
void to_numbers(ThreadPool& pool, const CodedTokens<T>& call) {
  namespace hn = hwy::HWY_NAMESPACE;
  const simd::DF f;
  const int64_t lanes = simd::lanes(), whole = call.size / lanes * lanes;
  const int64_t row = std::max<int64_t>(1, call.size);
  pool.for_range(call.heads * call.tokens, std::max<int64_t>(1, kElements / row),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t h = i / call.tokens, t = i % call.tokens;
                     const int8_t* const codes = call.from.row(call.sequence, t, h);
                     const simd::VF scale = hn::Set(f, *call.from.scale(call.sequence, t, h));
                     T* const y = call.y.at(0, t, h);
                     for (int64_t d = 0; d < whole; d += lanes) {
                       simd::store(hn::Mul(simd::load(f, codes + d), scale), f, y + d);
                     }
                     if (whole < call.size) {
                       simd::store_n(
                           hn::Mul(simd::load_n(f, codes + whole, call.size - whole), scale), f,
                           y + whole, call.size - whole);
                     }
                   }
                 });
}

void to_codes_f32(ThreadPool& pool, const TokenCodes<float>& call) { to_codes(pool, call); }
void to_codes_bf16(ThreadPool& pool, const TokenCodes<bfloat16>& call) { to_codes(pool, call); }
void to_codes_f16(ThreadPool& pool, const TokenCodes<float16>& call) { to_codes(pool, call); }
void to_f32(ThreadPool& pool, const CodedTokens<float>& call) { to_numbers(pool, call); }
void to_bf16(ThreadPool& pool, const CodedTokens<bfloat16>& call) { to_numbers(pool, call); }
void to_f16(ThreadPool& pool, const CodedTokens<float16>& call) { to_numbers(pool, call); }

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {
HWY_EXPORT(to_codes_f32);
HWY_EXPORT(to_codes_bf16);
HWY_EXPORT(to_codes_f16);
HWY_EXPORT(to_f32);
HWY_EXPORT(to_bf16);
HWY_EXPORT(to_f16);
}  // namespace

template <>
void quantize_tokens(const TokenCodes<float>& call, ThreadPool& pool) {
  HWY_DYNAMIC_DISPATCH(to_codes_f32)(pool, call);
}
template <>
void quantize_tokens(const TokenCodes<bfloat16>& call, ThreadPool& pool) {
  HWY_DYNAMIC_DISPATCH(to_codes_bf16)(pool, call);
}
template <>
void quantize_tokens(const TokenCodes<float16>& call, ThreadPool& pool) {
  HWY_DYNAMIC_DISPATCH(to_codes_f16)(pool, call);
}
template <>
void dequantize_tokens(const CodedTokens<float>& call, ThreadPool& pool) {
  HWY_DYNAMIC_DISPATCH(to_f32)(pool, call);
}
template <>
void dequantize_tokens(const CodedTokens<bfloat16>& call, ThreadPool& pool) {
  HWY_DYNAMIC_DISPATCH(to_bf16)(pool, call);
}
template <>
void dequantize_tokens(const CodedTokens<float16>& call, ThreadPool& pool) {
  HWY_DYNAMIC_DISPATCH(to_f16)(pool, call);
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
