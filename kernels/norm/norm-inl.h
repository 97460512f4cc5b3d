// Rows of layer and RMS normalisation. The call says which: with kCentred the mean is subtracted,
// and there is a beta. Included once per SIMD target.
#if defined(DS_KERNELS_NORM_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_NORM_NORM_INL_H_
#undef DS_KERNELS_NORM_NORM_INL_H_
#else
#define DS_KERNELS_NORM_NORM_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/map-inl.h"

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
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * n;
    const T* x = call.x + first;
    const T* s = x;  // what the statistics are of
    simd::Sums sums;
    // What the first pass adds up: elements for the mean, or already their squares.
    const auto add = [&](auto at, VF v) DS_SIMD_BODY {
      if constexpr (kCentred) {
        sums.add(at, v);
      } else {
        sums.add_product(at, v, v);
      }
    };
    if (call.residual != nullptr) {
      const T* r = call.residual + first;
      simd::map<T>(
          n,
          [&](auto at) DS_SIMD_BODY {
            const VF v = simd::stored_as<T>(d, hn::Add(at.load(x), at.load(r)));
            add(at, v);  // zero beyond the end
            return v;
          },
          call.sum + first);
      s = call.sum + first;
    } else {
      if (call.sum != nullptr && call.sum != call.x) {
        std::memcpy(call.sum + first, x, static_cast<size_t>(n) * sizeof(T));
      }
      simd::visit<T>(n, [&](auto at) DS_SIMD_BODY { add(at, at.load(x)); });
    }
    const float total = sums.total();
    const float mean = kCentred ? total / static_cast<float>(n) : 0.0f;
    const VF vmean = hn::Set(d, mean);
    float squares = total;
    if constexpr (kCentred) {
      simd::Sums around;
      simd::visit<T>(n, [&](auto at) DS_SIMD_BODY {
        const VF c = at.keep(hn::Sub(at.load(s), vmean));
        around.add_product(at, c, c);
      });
      squares = around.total();
      call.mean[row] = mean;
    }
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(n) + call.eps);
    call.rstd[row] = rstd;
    const VF vrstd = hn::Set(d, rstd);
    simd::map<T>(
        n,
        [&](auto at) DS_SIMD_BODY {
          const VF v = at.load(s), gamma = at.load(call.gamma);
          if constexpr (kCentred) {
            const VF xhat = hn::Mul(hn::Sub(v, vmean), vrstd);
            return hn::MulAdd(xhat, gamma, at.load(call.beta));
          } else {
            return hn::Mul(hn::Mul(v, vrstd), gamma);
          }
        },
        call.y + first);
  }
}

// One chunk of rows: dx, and the chunk's own sums for gamma and beta.
template <class Call>
void norm_backward_rows(const Call& call, int64_t begin, int64_t end, float* dgamma, float* dbeta) {
  using T = typename Call::Type;
  constexpr bool kCentred = Call::kCentred;
  const DF d;
  const int64_t n = call.cols;
  const T* const gamma = call.gamma;
  std::fill(dgamma, dgamma + n, 0.0f);
  if constexpr (kCentred) std::fill(dbeta, dbeta + n, 0.0f);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * n;
    const T* dy = call.dy + first;
    const T* s = call.sum + first;
    VF mean = hn::Zero(d);
    if constexpr (kCentred) mean = hn::Set(d, call.mean[row]);
    const float row_rstd = call.rstd[row];
    const VF rstd = hn::Set(d, row_rstd);
    const auto centred = [&](auto at) DS_SIMD_BODY {
      const VF v = at.load(s);
      return kCentred ? hn::Sub(v, mean) : v;
    };
    simd::Sums g_sum, gx_sum;
    simd::visit<T>(n, [&](auto at) DS_SIMD_BODY {
      const VF v = at.load(dy);  // zero beyond the end, and so all products
      const VF xhat = hn::Mul(centred(at), rstd), g = hn::Mul(v, at.load(gamma));
      gx_sum.add_product(at, g, xhat);
      const VF gamma_sum = hn::MulAdd(v, xhat, at.load_scratch(dgamma));
      if constexpr (kCentred) {
        g_sum.add(at, g);
        // Read before dgamma is written: at a distance of whole pages it would wait for that.
        const VF beta_sum = hn::Add(v, at.load_scratch(dbeta));
        at.store_scratch(beta_sum, dbeta);
      }
      at.store_scratch(gamma_sum, dgamma);
    });
    const float scale = 1.0f / static_cast<float>(n);
    // rstd * (g - mean(g) - xhat * mean(g * xhat)), multiplied out
    const VF base = hn::Set(d, -row_rstd * (g_sum.total() * scale));
    const VF slope = hn::Set(d, row_rstd * (row_rstd * (gx_sum.total() * scale)));
    const auto gradient = [&](auto at) DS_SIMD_BODY {
      const VF g = hn::Mul(at.load(dy), at.load(gamma));
      const VF flat = kCentred ? hn::MulAdd(g, rstd, base) : hn::Mul(g, rstd);
      return hn::NegMulAdd(centred(at), slope, flat);
    };
    if (call.dsum != nullptr) {
      const T* direct = call.dsum + first;
      simd::map<T>(
          n, [&](auto at) DS_SIMD_BODY { return hn::Add(gradient(at), at.load(direct)); },
          call.dx + first);
    } else {
      simd::map<T>(
          n, [&](auto at) DS_SIMD_BODY { return gradient(at); }, call.dx + first);
    }
  }
  if constexpr (simd::kSplit<T>) {
    simd::unsplit(n, dgamma);
    if constexpr (kCentred) simd::unsplit(n, dbeta);
  }
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
