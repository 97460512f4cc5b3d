// Rows for Adam: many steps beside the reference in double precision.
#include <algorithm>
#include <cmath>

#include "kernels/case_util.h"
#include "kernels/optimizer/adam.h"
#include "ops/adam.h"

namespace ds::testing {
namespace {

struct Variant {
  std::string name;
  ops::AdamStep step;
  bool model = false;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  const auto add = [&](const std::string& name, double lr, double decay, bool decoupled,
                       bool bias_correction, float grad_scale, bool model) {
    Variant variant{name, {}, model};
    variant.step.lr = lr;
    variant.step.weight_decay = decay;
    variant.step.decoupled = decoupled;
    variant.step.bias_correction = bias_correction;
    variant.step.grad_scale = grad_scale;
    all.push_back(variant);
  };
  add("adamw", 1e-3, 0.1, true, true, 1, false);
  add("adamw_bf16", 1e-3, 0.01, true, true, 0.37f, true);
  add("adam", 3e-3, 0, false, true, 1, false);
  add("adam_l2", 1e-3, 0.1, false, true, 2.5f, true);
  add("adam_uncorrected", 3e-4, 0.1, true, false, 1, false);
  add("adam_no_momentum", 1e-3, 0, true, true, 1, false);
  all.back().step.beta1 = 0;
  all.back().step.beta2 = 0.95;
  return all;
}

// Parameters within 1e-6 after the steps: each step rounds p once (at most 2^-24 |p|, in random
// directions) and its update to a few 1e-7 of lr. The gradient itself carries two fp32 roundings of
// its terms; where gradient and L2 decay cancel and v is small too, Adam divides that error by
// almost nothing, so an element is allowed in addition what this amplification gives. The moments
// stay within a few roundings of the largest gradient.
OpCase steps_case(const Variant& variant, int64_t n, int steps) {
  OpCase row;
  row.name = str_cat(variant.name, "/", n, "/", steps, "steps");
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    Tensor p = random_tensor(random, DType::kFloat32, {n}, 0.2);
    Tensor m = filled_tensor(DType::kFloat32, {n}, 0), v = filled_tensor(DType::kFloat32, {n}, 0);
    Tensor model = variant.model ? guarded_tensor(DType::kBFloat16, {n}) : Tensor();
    std::vector<double> ep = doubles(p), em = doubles(m), ev = doubles(v);
    // One sample of numbers, read from another place every step.
    const Tensor noise = random_tensor(random, DType::kFloat32, {n + 1000}, 0.05, 0.01);
    kernels::AdamHyper hyper;
    hyper.lr = variant.step.lr;
    hyper.beta1 = variant.step.beta1;
    hyper.beta2 = variant.step.beta2;
    hyper.eps = variant.step.eps;
    hyper.weight_decay = variant.step.weight_decay;
    hyper.decoupled = variant.step.decoupled;
    hyper.bias_correction = variant.step.bias_correction;
    hyper.grad_scale = variant.step.grad_scale;
    double most = 0;
    std::vector<double> rounding(ep.size()), allowed(ep.size(), 1e-6);
    for (int t = 1; t <= steps; ++t) {
      const auto skip = static_cast<int64_t>(random() % 1000);
      const Tensor grad = noise.slice(0, skip, skip + n);
      const std::vector<double> g = doubles(grad);
      for (const double x : g) most = std::max(most, std::abs(x * hyper.grad_scale));
      hyper.step = t;
      const double decay = hyper.decoupled ? 0 : hyper.weight_decay;
      for (size_t i = 0; i < ep.size(); ++i) {
        rounding[i] = std::max(
            rounding[i], 0x1p-23 * (std::abs(g[i] * hyper.grad_scale) + decay * std::abs(ep[i])));
      }
      kernels::reference::adam(hyper, n, ep.data(), g.data(), em.data(), ev.data());
      const double c2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, t) : 1;
      for (size_t i = 0; i < ep.size(); ++i) {
        allowed[i] += 2 * hyper.lr * rounding[i] / (std::sqrt(ev[i] / c2) + hyper.eps);
      }
      ops::AdamStep step = variant.step;
      step.step = t;
      ops::adam(ctx, step, p, grad, m, v, model);
    }
    // L2 decay carries what p is allowed into the gradient.
    const double decay = hyper.decoupled ? 0 : hyper.weight_decay;
    most += decay;
    std::vector<double> m_allowed(ep.size()), v_allowed(ep.size());
    for (size_t i = 0; i < ep.size(); ++i) {
      m_allowed[i] = 2e-6 * most + decay * allowed[i];
      v_allowed[i] = 2 * most * m_allowed[i];
    }
    compare(result, "master", p, ep, {1, 0}, allowed);
    compare(result, "m", m, em, {1, 0}, m_allowed);
    compare(result, "v", v, ev, {1, 0}, v_allowed);
    if (model) {
      std::vector<double> rounded = doubles(p);
      for (double& x : rounded) x = to_float(to_bfloat16(static_cast<float>(x)));
      compare(result, "model", model, rounded, {});
    }
    return result;
  };
  return row;
}

// Late and first steps, where the bias correction is 1 and where it is tiny.
OpCase single_step(int64_t t) {
  OpCase row;
  row.name = str_cat("adamw_step/", t);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    constexpr int64_t kElements = 333;
    Random random(seed);
    CaseResult result;
    Tensor p = random_tensor(random, DType::kFloat32, {kElements}, 0.1);
    const Tensor grad = random_tensor(random, DType::kFloat32, {kElements}, 1e-3);
    Tensor m = random_tensor(random, DType::kFloat32, {kElements}, 1e-3);
    Tensor v = random_tensor(random, DType::kFloat32, {kElements}, 1e-7, 1e-6), model;
    ops::AdamStep step;
    step.step = t;
    step.weight_decay = 0.1;
    std::vector<double> ep = doubles(p), em = doubles(m), ev = doubles(v);
    for (int64_t i = 0; i < kElements; ++i) {
      ev[static_cast<size_t>(i)] = std::abs(ev[static_cast<size_t>(i)]);
    }
    set_doubles(v, ev);
    kernels::AdamHyper hyper;
    hyper.step = t;
    hyper.weight_decay = 0.1;
    kernels::reference::adam(hyper, kElements, ep.data(), doubles(grad).data(), em.data(),
                             ev.data());
    ops::adam(ctx, step, p, grad, m, v, model);
    compare(result, "master", p, ep, {2e-7, 1e-8});
    compare(result, "m", m, em, {1e-6, 1e-9});
    compare(result, "v", v, ev, {1e-6, 0});
    return result;
  };
  return row;
}

OpCase bench(bool with_model) {
  constexpr int64_t kElements = int64_t{1} << 24;
  OpCase row;
  row.name = str_cat(with_model ? "adamw_bf16" : "adamw", "/16M");
  // Master, m and v read and written, the gradient read, the model written.
  row.bytes = static_cast<double>(kElements * (28 + (with_model ? 2 : 0)));
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor grad = bench_tensor(ctx, DType::kFloat32, {kElements});
    Tensor p = bench_tensor(ctx, DType::kFloat32, {kElements});
    const auto zeros = [&] {
      return Tensor::zeros(ctx.device, DType::kFloat32, {kElements}, MemoryTag::kOther);
    };
    Tensor m = zeros(), v = zeros();
    Tensor model = with_model ? bench_tensor(ctx, DType::kBFloat16, {kElements}) : Tensor();
    ops::AdamStep step;
    step.weight_decay = 0.1;
    return [=]() mutable {
      ops::adam(ctx, step, p, grad, m, v, model);
      ++step.step;
    };
  };
  return row;
}

}  // namespace

std::vector<OpCase> optimizer_cases() {
  std::vector<OpCase> rows;
  for (const Variant& variant : variants()) {
    for (const int64_t n : {1, 17, 1003}) rows.push_back(steps_case(variant, n, 100));
    rows.push_back(steps_case(variant, 70001, 3));
  }
  rows.push_back(steps_case(variants().front(), 0, 1));
  for (const int64_t t : {1, 2, 1000, 1000000}) rows.push_back(single_step(t));
  rows.push_back(bench(false));
  rows.push_back(bench(true));
  return rows;
}

}  // namespace ds::testing
