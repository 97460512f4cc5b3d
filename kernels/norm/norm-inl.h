// Rows of layer and RMS normalisation. The call says which: with kCentred the mean is subtracted,
// and there is a beta. Included once per SIMD target.
#if defined(DS_KERNELS_NORM_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_NORM_NORM_INL_H_
#undef DS_KERNELS_NORM_NORM_INL_H_
#else
#define DS_KERNELS_NORM_NORM_INL_H_
#endif

#include <cmath>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// A row is read from memory once and then from cache.
template <class Call>
void norm_rows(const Call& call, int64_t begin, int64_t end) {
  using T = typename Call::Type;
  constexpr bool kCentred = Call::kCentred;
  const DF d;
  const int64_t n = call.cols;
  // What the first pass adds up: elements for the mean, or already their squares.
  const auto term = [](VF v) DS_SIMD_BODY { return kCentred ? v : hn::Mul(v, v); };
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
        return term(v);
      });
      s = out;
    } else {
      total = simd::sum_over(n, [&](int64_t i, auto count)
                                    DS_SIMD_BODY { return term(simd::load_n(d, x + i, count)); });
    }
    const float mean = kCentred ? total / static_cast<float>(n) : 0.0f;
    const VF vmean = hn::Set(d, mean);
    float squares = total;
    if constexpr (kCentred) {
      squares = simd::sum_over(n, [&](int64_t i, auto count) DS_SIMD_BODY {
        const VF c = simd::keep_n(d, hn::Sub(simd::load_n(d, s + i, count), vmean), count);
        return hn::Mul(c, c);
      });
      call.mean[row] = mean;
    }
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(n) + call.eps);
    call.rstd[row] = rstd;
    const VF vrstd = hn::Set(d, rstd);
    T* y = call.y + at;
    simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
      VF v = simd::load_n(d, s + i, count);
      const VF gamma = simd::load_n(d, call.gamma + i, count);
      if constexpr (kCentred) {
        const VF xhat = hn::Mul(hn::Sub(v, vmean), vrstd);
        v = hn::MulAdd(xhat, gamma, simd::load_n(d, call.beta + i, count));
      } else {
        v = hn::Mul(hn::Mul(v, vrstd), gamma);
      }
      simd::store_n(v, d, y + i, count);
    });
  }
}

// One chunk of rows: dx, and the chunk's own sums for gamma and beta.
template <class Call>
void norm_backward_rows(const Call& call, int64_t begin, int64_t end, float* dgamma, float* dbeta) {
  using T = typename Call::Type;
  constexpr bool kCentred = Call::kCentred;
  const DF d;
  const int64_t n = call.cols;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(hn::Zero(d), d, dgamma + i, count);
    if constexpr (kCentred) simd::store_n(hn::Zero(d), d, dbeta + i, count);
  });
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * n;
    const T* dy = call.dy + at;
    const T* s = call.sum + at;
    VF mean = hn::Zero(d);
    if constexpr (kCentred) mean = hn::Set(d, call.mean[row]);
    const VF rstd = hn::Set(d, call.rstd[row]);
    const auto normalised = [&](int64_t i, auto count) DS_SIMD_BODY {
      const VF v = simd::load_n(d, s + i, count);
      return hn::Mul(kCentred ? hn::Sub(v, mean) : v, rstd);
    };
    VF g_sum = hn::Zero(d), gx_sum = hn::Zero(d);
    simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
      const VF v = simd::load_n(d, dy + i, count);  // zero beyond the end, and so all products
      const VF xhat = normalised(i, count);
      const VF g = hn::Mul(v, simd::load_n(d, call.gamma + i, count));
      gx_sum = hn::MulAdd(g, xhat, gx_sum);
      simd::store_n(hn::MulAdd(v, xhat, simd::load_n(d, dgamma + i, count)), d, dgamma + i, count);
      if constexpr (kCentred) {
        g_sum = hn::Add(g_sum, g);
        simd::store_n(hn::Add(v, simd::load_n(d, dbeta + i, count)), d, dbeta + i, count);
      }
    });
    const float scale = 1.0f / static_cast<float>(n);
    const VF g_mean = hn::Set(d, simd::sum_of_lanes(d, g_sum) * scale);
    const VF gx_mean = hn::Set(d, simd::sum_of_lanes(d, gx_sum) * scale);
    const T* direct = call.dsum != nullptr ? call.dsum + at : nullptr;
    T* dx = call.dx + at;
    simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
      VF g = hn::Mul(simd::load_n(d, dy + i, count), simd::load_n(d, call.gamma + i, count));
      if constexpr (kCentred) g = hn::Sub(g, g_mean);
      VF v = hn::Mul(hn::NegMulAdd(normalised(i, count), gx_mean, g), rstd);
      if (direct != nullptr) v = hn::Add(v, simd::load_n(d, direct + i, count));
      simd::store_n(v, d, dx + i, count);
    });
  }
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
