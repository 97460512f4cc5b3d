// Layer normalisation with Highway.
#include "kernels/norm/layer_norm.h"

#include <cmath>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/layer_norm_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

template <class T>
void forward_rows(const LayerNorm<T>& call, int64_t begin, int64_t end) {
  const DF d;
  const int64_t n = call.cols;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * n;
    const T* x = call.x + at;
    const T* s = x;  // what the statistics are of
    float total;
    if (call.residual != nullptr || (call.sum != nullptr && call.sum != call.x)) {
      const T* r = call.residual != nullptr ? call.residual + at : nullptr;
      T* out = call.sum + at;
      total = simd::sum_over(n, [&](int64_t i, auto count) DS_SIMD_BODY {
        VF v = simd::load_n(d, x + i, count);
        if (r != nullptr) {
          v = simd::rounded_to<T>(d, hn::Add(v, simd::load_n(d, r + i, count)));
        }
        simd::store_n(v, d, out + i, count);
        return v;
      });
      s = out;
    } else {
      total = simd::sum_over(
          n, [&](int64_t i, auto count) DS_SIMD_BODY { return simd::load_n(d, x + i, count); });
    }
    const float mean = total / static_cast<float>(n);
    const VF vmean = hn::Set(d, mean);
    const float squares = simd::sum_over(n, [&](int64_t i, auto count) DS_SIMD_BODY {
      const VF c = simd::keep_n(d, hn::Sub(simd::load_n(d, s + i, count), vmean), count);
      return hn::Mul(c, c);
    });
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(n) + call.eps);
    const VF vrstd = hn::Set(d, rstd);
    T* y = call.y + at;
    simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
      const VF xhat = hn::Mul(hn::Sub(simd::load_n(d, s + i, count), vmean), vrstd);
      const VF v = hn::MulAdd(xhat, simd::load_n(d, call.gamma + i, count),
                              simd::load_n(d, call.beta + i, count));
      simd::store_n(v, d, y + i, count);
    });
    call.mean[row] = mean;
    call.rstd[row] = rstd;
  }
}

void forward_f32(const LayerNorm<float>& call, int64_t begin, int64_t end) {
  forward_rows(call, begin, end);
}
void forward_bf16(const LayerNorm<bfloat16>& call, int64_t begin, int64_t end) {
  forward_rows(call, begin, end);
}

// One chunk of rows: dx, and the chunk's own sums for gamma and beta.
template <class T>
void backward_rows(const LayerNormBackward<T>& call, int64_t begin, int64_t end, float* dgamma,
                   float* dbeta) {
  const DF d;
  const int64_t n = call.cols;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(hn::Zero(d), d, dgamma + i, count);
    simd::store_n(hn::Zero(d), d, dbeta + i, count);
  });
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * n;
    const T* dy = call.dy + at;
    const T* s = call.sum + at;
    const VF mean = hn::Set(d, call.mean[row]), rstd = hn::Set(d, call.rstd[row]);
    VF g_sum = hn::Zero(d), gx_sum = hn::Zero(d);
    simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
      const VF v = simd::load_n(d, dy + i, count);  // zero beyond the end, and so all products
      const VF xhat = hn::Mul(hn::Sub(simd::load_n(d, s + i, count), mean), rstd);
      const VF g = hn::Mul(v, simd::load_n(d, call.gamma + i, count));
      g_sum = hn::Add(g_sum, g);
      gx_sum = hn::MulAdd(g, xhat, gx_sum);
      simd::store_n(hn::MulAdd(v, xhat, simd::load_n(d, dgamma + i, count)), d, dgamma + i, count);
      simd::store_n(hn::Add(v, simd::load_n(d, dbeta + i, count)), d, dbeta + i, count);
    });
    const float scale = 1.0f / static_cast<float>(n);
    const VF g_mean = hn::Set(d, simd::sum_of_lanes(d, g_sum) * scale);
    const VF gx_mean = hn::Set(d, simd::sum_of_lanes(d, gx_sum) * scale);
    const T* direct = call.dsum != nullptr ? call.dsum + at : nullptr;
    T* dx = call.dx + at;
    simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
      const VF xhat = hn::Mul(hn::Sub(simd::load_n(d, s + i, count), mean), rstd);
      const VF g = hn::Mul(simd::load_n(d, dy + i, count), simd::load_n(d, call.gamma + i, count));
      VF v = hn::Mul(hn::NegMulAdd(xhat, gx_mean, hn::Sub(g, g_mean)), rstd);
      if (direct != nullptr) v = hn::Add(v, simd::load_n(d, direct + i, count));
      simd::store_n(v, d, dx + i, count);
    });
  }
}

void backward_f32(const LayerNormBackward<float>& call, int64_t begin, int64_t end, float* dgamma,
                  float* dbeta) {
  backward_rows(call, begin, end, dgamma, dbeta);
}
void backward_bf16(const LayerNormBackward<bfloat16>& call, int64_t begin, int64_t end,
                   float* dgamma, float* dbeta) {
  backward_rows(call, begin, end, dgamma, dbeta);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);

template <class T, class Rows>
void forward(const LayerNorm<T>& call, ThreadPool& pool, const Rows& rows) {
  if (call.cols <= 0) return;
  constexpr int64_t kElements = 16384;
  const int64_t grain = call.cols >= kElements ? 1 : kElements / call.cols;
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) { rows(call, begin, end); });
}

template <class T, class Rows>
void backward(const LayerNormBackward<T>& call, ThreadPool& pool, const Rows& rows) {
  if (call.rows <= 0 || call.cols <= 0) return;
  const int64_t size = row_chunk_size(call.rows), chunks = row_chunks(call.rows);
  float* const dgamma = call.partials;
  float* const dbeta = call.partials + chunks * call.cols;
  pool.for_range(call.rows, size, [&](int64_t begin, int64_t end) {
    const int64_t at = begin / size * call.cols;
    rows(call, begin, end, dgamma + at, dbeta + at);
  });
  add_partial_sums(dgamma, chunks, call.cols, call.dgamma, pool);
  add_partial_sums(dbeta, chunks, call.cols, call.dbeta, pool);
}

}  // namespace

void layer_norm(const LayerNorm<float>& call, ThreadPool& pool) {
  forward(call, pool, HWY_DYNAMIC_DISPATCH(forward_f32));
}
void layer_norm(const LayerNorm<bfloat16>& call, ThreadPool& pool) {
  forward(call, pool, HWY_DYNAMIC_DISPATCH(forward_bf16));
}

void layer_norm_backward(const LayerNormBackward<float>& call, ThreadPool& pool) {
  backward(call, pool, HWY_DYNAMIC_DISPATCH(backward_f32));
}
void layer_norm_backward(const LayerNormBackward<bfloat16>& call, ThreadPool& pool) {
  backward(call, pool, HWY_DYNAMIC_DISPATCH(backward_bf16));
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
