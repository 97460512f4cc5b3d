// Adam with Highway: every array is read and written once.
#include "kernels/optimizer/adam.h"

#include <cmath>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optimizer/adam_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

template <bool kModel>
void adam_any(const AdamConstants& c, int64_t n, float* p, const float* grad, float* m, float* v,
              bfloat16* model) {
  const DF d;
  const VF beta1 = hn::Set(d, c.beta1), beta1_rest = hn::Set(d, c.beta1_rest);
  const VF beta2 = hn::Set(d, c.beta2), beta2_rest = hn::Set(d, c.beta2_rest);
  const VF root_scale = hn::Set(d, c.root_scale), eps = hn::Set(d, c.eps);
  const VF step_size = hn::Set(d, c.step_size), grad_scale = hn::Set(d, c.grad_scale);
  const VF coupled = hn::Set(d, c.coupled_decay), decoupled = hn::Set(d, c.decoupled_decay);
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    const VF old = simd::load_n(d, p + i, count);
    const VF g = hn::MulAdd(coupled, old, hn::Mul(simd::load_n(d, grad + i, count), grad_scale));
    const VF mean = hn::MulAdd(beta1, simd::load_n(d, m + i, count), hn::Mul(beta1_rest, g));
    const VF square =
        hn::MulAdd(beta2, simd::load_n(d, v + i, count), hn::Mul(hn::Mul(beta2_rest, g), g));
    simd::store_n(mean, d, m + i, count);
    simd::store_n(square, d, v + i, count);
    const VF root = hn::MulAdd(hn::Sqrt(square), root_scale, eps);
    const VF update = hn::MulAdd(decoupled, old, hn::Div(hn::Mul(step_size, mean), root));
    const VF next = hn::Sub(old, update);
    simd::store_n(next, d, p + i, count);
    if constexpr (kModel) simd::store_n(next, d, model + i, count);
  });
}

void adam_range(const AdamConstants& c, int64_t n, float* p, const float* grad, float* m, float* v,
                bfloat16* model) {
  if (model != nullptr) {
    adam_any<true>(c, n, p, grad, m, v, model);
  } else {
    adam_any<false>(c, n, p, grad, m, v, model);
  }
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(adam_range);

// 1 - beta^t without the cancellation of small t * (1 - beta).
double one_minus_power(double beta, int64_t t) {
  return -std::expm1(static_cast<double>(t) * std::log(beta));
}

}  // namespace

AdamConstants adam_constants(const AdamHyper& hyper) {
  const double c1 = hyper.bias_correction ? one_minus_power(hyper.beta1, hyper.step) : 1.0;
  const double c2 = hyper.bias_correction ? one_minus_power(hyper.beta2, hyper.step) : 1.0;
  AdamConstants c;
  c.beta1 = static_cast<float>(hyper.beta1);
  c.beta1_rest = static_cast<float>(1 - hyper.beta1);
  c.beta2 = static_cast<float>(hyper.beta2);
  c.beta2_rest = static_cast<float>(1 - hyper.beta2);
  c.root_scale = static_cast<float>(1 / std::sqrt(c2));
  c.eps = static_cast<float>(hyper.eps);
  c.step_size = static_cast<float>(hyper.lr / c1);
  c.coupled_decay = hyper.decoupled ? 0.0f : static_cast<float>(hyper.weight_decay);
  c.decoupled_decay = hyper.decoupled ? static_cast<float>(hyper.lr * hyper.weight_decay) : 0.0f;
  c.grad_scale = hyper.grad_scale;
  return c;
}

void adam(const AdamConstants& constants, int64_t n, float* p, const float* grad, float* m,
          float* v, bfloat16* model, ThreadPool& pool) {
  constexpr int64_t kGrain = int64_t{1} << 15;
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(adam_range)
    (constants, end - begin, p + begin, grad + begin, m + begin, v + begin,
     model != nullptr ? model + begin : nullptr);
  });
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
