// Rows for optimizer updates: every rule beside its reference in double precision over many steps,
// the 8-bit codes, and times of fused passes beside separate ones.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/case_util.h"
#include "ops/elementwise.h"
#include "ops/optimizer_update.h"
#include "ops/reduce.h"
#include "tensor/transfer.h"

namespace ds::testing::optimizer_rows {
namespace {

using kernels::UpdateHyper;
using kernels::UpdateRule;

// One run with one set of constants.
struct Work {
  explicit Work(int64_t n) {
    for (int64_t at = 0; at < n; at += kernels::kUpdateChunk) {
      first.push_back(static_cast<int64_t>(pieces.size()));
      pieces.push_back({at, std::min(n, at + kernels::kUpdateChunk), 0});
    }
    first.push_back(static_cast<int64_t>(pieces.size()));
    norms.resize(2 * pieces.size());
  }

  void update(const OpContext& ctx, UpdateRule rule, const UpdateHyper& hyper,
              ops::UpdateTensors& tensors) {
    constants.assign(1, kernels::update_constants(rule, hyper));
    ops::UpdateWork work{constants, pieces, first};
    if (rule == UpdateRule::kLambMoments) {
      std::fill(norms.begin(), norms.end(), ExactSum());
      work.norms = norms;
    }
    ops::optimizer_update(ctx, rule, work, tensors);
  }

  double lamb(const OpContext& ctx, UpdateHyper hyper, ops::UpdateTensors& tensors) {
    update(ctx, UpdateRule::kLambMoments, hyper, tensors);
    ExactSum weights, updates;
    for (size_t i = 0; i < norms.size(); i += 2) {
      weights.add(norms[i]);
      updates.add(norms[i + 1]);
    }
    const double ratio = kernels::lamb_ratio(hyper, weights.value(), updates.value());
    hyper.lr *= ratio;
    update(ctx, UpdateRule::kLambApply, hyper, tensors);
    return ratio;
  }

  std::vector<kernels::UpdateConstants> constants;
  std::vector<kernels::UpdatePiece> pieces;
  std::vector<int64_t> first;
  std::vector<ExactSum> norms;
};

// Whatever `decoupled` says, which only Adam's kin reads.
bool is_coupled(UpdateRule rule) {
  return rule != UpdateRule::kAdam && rule != UpdateRule::kAmsgrad && rule != UpdateRule::kNadam;
}

struct Variant {
  std::string name;
  UpdateRule rule = UpdateRule::kAdam;
  UpdateHyper hyper;
  bool model = false;  // with a bf16 copy
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  const auto add = [&](const std::string& name, UpdateRule rule, double lr, double decay,
                       float grad_scale, bool model) -> UpdateHyper& {
    all.push_back({name, rule, {}, model});
    UpdateHyper& hyper = all.back().hyper;
    hyper.lr = lr;
    hyper.weight_decay = decay;
    hyper.grad_scale = grad_scale;
    return hyper;
  };
  add("adamw", UpdateRule::kAdam, 1e-3, 0.1, 1, false);
  add("adamw_bf16", UpdateRule::kAdam, 1e-3, 0.01, 0.37f, true);
  add("adam", UpdateRule::kAdam, 3e-3, 0, 1, false).decoupled = false;
  add("adam_l2", UpdateRule::kAdam, 1e-3, 0.1, 2.5f, true).decoupled = false;
  add("adam_uncorrected", UpdateRule::kAdam, 3e-4, 0.1, 1, false).bias_correction = false;
  UpdateHyper& plain = add("adam_no_momentum", UpdateRule::kAdam, 1e-3, 0, 1, false);
  plain.beta1 = 0;
  plain.beta2 = 0.95;
  add("adagrad", UpdateRule::kAdagrad, 1e-2, 0, 0.5f, true).eps = 1e-10;
  UpdateHyper& slowing = add("adagrad_l2", UpdateRule::kAdagrad, 1e-2, 0.1, 0.5f, false);
  slowing.eps = 1e-10;
  slowing.lr_decay = 0.1;
  slowing.decoupled = false;
  add("amsgrad", UpdateRule::kAmsgrad, 1e-3, 0.1, 0.5f, true).beta2 = 0.9;
  add("nadam", UpdateRule::kNadam, 1e-3, 0.1, 0.5f, true).momentum_decay = 4e-3;
  UpdateHyper& coupled = add("nadam_l2", UpdateRule::kNadam, 1e-3, 0.1, 1, false);
  coupled.momentum_decay = 0.05;
  coupled.decoupled = false;
  for (const auto& [name, rule] :
       {std::pair("rmsprop", UpdateRule::kRmsprop),
        std::pair("rmsprop_momentum", UpdateRule::kRmspropMomentum),
        std::pair("rmsprop_centered", UpdateRule::kRmspropCentered),
        std::pair("rmsprop_both", UpdateRule::kRmspropCenteredMomentum)}) {
    UpdateHyper& hyper = add(name, rule, 3e-4, 0.1, 0.5f, rule != UpdateRule::kRmsprop);
    hyper.beta1 = 0.8;
    hyper.beta2 = 0.95;
    hyper.decoupled = false;
  }
  add("lion", UpdateRule::kLion, 1e-4, 0.1, 0.5f, true).beta2 = 0.99;
  add("sgd", UpdateRule::kSgd, 1e-2, 0.1, 0.5f, true).beta1 = 0;
  add("momentum", UpdateRule::kMomentum, 1e-2, 0.1, 0.5f, true).dampening = 0.1;
  add("nesterov", UpdateRule::kMomentum, 1e-2, 0.01, 1, false).nesterov = true;
  add("lamb", UpdateRule::kLambMoments, 1e-3, 0.01, 0.5f, true);
  UpdateHyper& inside = add("lamb_inside", UpdateRule::kLambMoments, 1e-3, 0, 1, false);
  inside.eps_inside_sqrt = true;
  inside.eps = 1e-6;
  return all;
}

// What of a weight's deviation a formula amplifies; grows step by step.
struct Allowed {
  std::vector<double> rounding, weights;
  explicit Allowed(size_t n) : rounding(n), weights(n, 1e-6) {}

  // An error of the gradient over the root, and one of the variance, which is a difference, within
  // the root; momentum repeats both.
  double rmsprop_error(const UpdateHyper& hyper, size_t i, double g, double square,
                       double mean) const {
    const double variance = std::max(0.0, square - mean * mean);
    const double root = std::sqrt(variance) + hyper.eps;
    const double blur = variance > 0 ? 0x1p-20 * square / variance : 1;
    return 2 / (1 - hyper.beta1) * hyper.lr / root * (rounding[i] + std::abs(g) * blur);
  }

  // m is the first state before the step; s, v and w are the three after it.
  void grow(const Variant& variant, size_t i, double g, double p, double m, double s, double v,
            double w) {
    const UpdateHyper& hyper = variant.hyper;
    g *= hyper.grad_scale;
    const double coupled =
        variant.rule == UpdateRule::kLion || hyper.decoupled ? 0 : hyper.weight_decay * std::abs(p);
    rounding[i] = std::max(rounding[i], 0x1p-23 * (std::abs(g) + coupled));
    switch (variant.rule) {
      case UpdateRule::kAdam:
      case UpdateRule::kAmsgrad:
      case UpdateRule::kNadam: {
        const double t = static_cast<double>(hyper.step);
        const double c2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, t) : 1;
        weights[i] += 2 * hyper.lr * rounding[i] / (std::sqrt(v / c2) + hyper.eps);
        break;
      }
      case UpdateRule::kAdagrad:
        if (coupled > 0) weights[i] += 2 * hyper.lr * rounding[i] / (std::sqrt(s) + hyper.eps);
        weights[i] += 0x1p-25 * std::abs(p);
        break;
      case UpdateRule::kRmsprop:
      case UpdateRule::kRmspropMomentum:
        weights[i] += rmsprop_error(hyper, i, g + coupled, s, 0);
        break;
      case UpdateRule::kRmspropCentered:
        weights[i] += rmsprop_error(hyper, i, g + coupled, s, v);
        break;
      case UpdateRule::kRmspropCenteredMomentum:
        weights[i] += rmsprop_error(hyper, i, g + coupled, s, w);
        break;
      case UpdateRule::kLion: {
        const double u = hyper.beta1 * m + (1 - hyper.beta1) * g;
        if (std::abs(u) < 1e-8) weights[i] += 2 * hyper.lr;  // fp32 may see the other sign
        weights[i] += 0x1p-24 * std::abs(p);                 // rounded the same way every step
        break;
      }
      default:
        weights[i] += 0x1p-25 * std::abs(p);
    }
  }
};

// How far states may lie from the reference: the first, the second, the third.
std::array<double, 3> states_allowed(const Variant& variant, double most, double sum,
                                     double carried, double weight) {
  const double m = 2e-6 * most * std::max(1.0, sum) + carried, square = 2 * most * m;
  // The buffer adds up what weights lose, before the rate; weights lose what it holds every step.
  const double buffer = 2e-5 + 2 * weight / variant.hyper.lr;
  switch (variant.rule) {
    case UpdateRule::kRmsprop:
    case UpdateRule::kRmspropCentered:
      return {square, m, 0};
    case UpdateRule::kRmspropMomentum:
    case UpdateRule::kRmspropCenteredMomentum:
      return {square, buffer, m};
    default:
      return {m, square, square};
  }
}

void reference_step(const Variant& variant, const UpdateHyper& hyper, int64_t n, double* p,
                    const double* g, double* m, double* v, double* w) {
  using namespace kernels::reference;
  switch (variant.rule) {
    case UpdateRule::kAdam:
      return adam(hyper, n, p, g, m, v);
    case UpdateRule::kAmsgrad:
      return adam(hyper, n, p, g, m, v, w);
    case UpdateRule::kNadam:
      return nadam(hyper, n, p, g, m, v);
    case UpdateRule::kRmsprop:
      return rmsprop(hyper, n, p, g, m, nullptr, nullptr);
    case UpdateRule::kRmspropMomentum:
      return rmsprop(hyper, n, p, g, m, v, nullptr);
    case UpdateRule::kRmspropCentered:
      return rmsprop(hyper, n, p, g, m, nullptr, v);
    case UpdateRule::kRmspropCenteredMomentum:
      return rmsprop(hyper, n, p, g, m, v, w);
    case UpdateRule::kAdagrad:
      return kernels::reference::adagrad(hyper, n, p, g, m);
    case UpdateRule::kLion:
      return kernels::reference::lion(hyper, n, p, g, m);
    case UpdateRule::kLambMoments:
      kernels::reference::lamb(hyper, n, p, g, m, v);
      return;
    default:
      kernels::reference::sgd(hyper, n, p, g, m);
  }
}

// Parameters within 1e-6 after the steps: each step rounds p once (at most 2^-24 |p|, in random
// directions) and its update to a few 1e-7 of lr. The gradient itself carries two fp32 roundings of
// its terms; where gradient and L2 decay cancel and v is small too, Adam divides that error by
// almost nothing, so an element is allowed in addition what this amplification gives. The moments
// stay within a few roundings of the largest gradient.
OpCase steps_case(Variant variant, int64_t n, int steps) {
  OpCase row;
  row.name = str_cat(variant.name, "/", n, "/", steps, "steps");
  row.check = [=](const OpContext& ctx, uint64_t seed) mutable {
    Random random(seed);
    CaseResult result;
    ops::UpdateTensors tensors;
    tensors.master = random_tensor(random, DType::kFloat32, {n}, 0.2);
    for (ops::StateTensor& state : tensors.states) {
      state.data = filled_tensor(DType::kFloat32, {n}, 0);
    }
    if (variant.model) tensors.model = guarded_tensor(DType::kBFloat16, {n});
    std::vector<double> ep = doubles(tensors.master);
    std::vector<double> em(ep.size()), ev(ep.size()), ew(ep.size()), before;
    // One sample of numbers, read from another place every step.
    const Tensor noise = random_tensor(random, DType::kFloat32, {n + 1000}, 0.05, 0.01);
    UpdateHyper& hyper = variant.hyper;
    Allowed allowed(ep.size());
    Work work(n);
    double most = 0;
    for (int t = 1; t <= steps; ++t) {
      const auto skip = static_cast<int64_t>(random() % 1000);
      tensors.grad = noise.slice(0, skip, skip + n);
      const std::vector<double> g = doubles(tensors.grad);
      for (const double x : g) most = std::max(most, std::abs(x * hyper.grad_scale));
      hyper.step = t;
      if (variant.rule == UpdateRule::kNadam) {
        hyper.momentum_product = t == 1 ? 1 : hyper.momentum_product;
        hyper.momentum_product *= kernels::nadam_momentum(hyper.beta1, hyper.momentum_decay, t);
      }
      before = em;
      reference_step(variant, hyper, n, ep.data(), g.data(), em.data(), ev.data(), ew.data());
      for (size_t i = 0; i < ep.size(); ++i) {
        allowed.grow(variant, i, g[i], ep[i], before[i], em[i], ev[i], ew[i]);
      }
      if (variant.rule == UpdateRule::kLambMoments) {
        work.lamb(ctx, hyper, tensors);
      } else {
        work.update(ctx, variant.rule, hyper, tensors);
      }
    }
    // Coupled decay carries what p is allowed into the gradient.
    const double decay = hyper.decoupled && !is_coupled(variant.rule) ? 0 : hyper.weight_decay;
    most += decay;
    const double sums = variant.rule == UpdateRule::kAdagrad ? steps * most : 10;
    std::vector<double> bounds[3];
    for (const double weight : allowed.weights) {
      const auto each = states_allowed(variant, most, sums, 10 * decay * weight, weight);
      for (size_t k = 0; k < 3; ++k) bounds[k].push_back(each[k]);
    }
    compare(result, "master", tensors.master, ep, {1, 0}, allowed.weights);
    compare(result, "first state", tensors.states[0].data, em, {1, 0}, bounds[0]);
    compare(result, "second state", tensors.states[1].data, ev, {1, 0}, bounds[1]);
    compare(result, "third state", tensors.states[2].data, ew, {1, 0}, bounds[2]);
    if (tensors.model) {
      std::vector<double> rounded = doubles(tensors.master);
      for (double& x : rounded) x = to_float(to_bfloat16(static_cast<float>(x)));
      compare(result, "model", tensors.model, rounded, {});
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
    ops::UpdateTensors tensors;
    tensors.master = random_tensor(random, DType::kFloat32, {kElements}, 0.1);
    tensors.grad = random_tensor(random, DType::kFloat32, {kElements}, 1e-3);
    tensors.states[0].data = random_tensor(random, DType::kFloat32, {kElements}, 1e-3);
    tensors.states[1].data = random_tensor(random, DType::kFloat32, {kElements}, 1e-7, 1e-6);
    UpdateHyper hyper;
    hyper.step = t;
    hyper.weight_decay = 0.1;
    std::vector<double> ep = doubles(tensors.master), em = doubles(tensors.states[0].data);
    std::vector<double> ev = doubles(tensors.states[1].data);
    for (double& x : ev) x = std::abs(x);
    set_doubles(tensors.states[1].data, ev);
    kernels::reference::adam(hyper, kElements, ep.data(), doubles(tensors.grad).data(), em.data(),
                             ev.data());
    Work(kElements).update(ctx, UpdateRule::kAdam, hyper, tensors);
    compare(result, "master", tensors.master, ep, {2e-7, 1e-8});
    compare(result, "m", tensors.states[0].data, em, {1e-6, 1e-9});
    compare(result, "v", tensors.states[1].data, ev, {1e-6, 0});
    return result;
  };
  return row;
}

// Second moments at the ends of the range: zero, subnormal, huge and infinite ones divide like any
// other.
OpCase edges() {
  OpCase row;
  row.name = "adam_edges";
  row.check = [](const OpContext& ctx, uint64_t seed) {
    constexpr int64_t kElements = 77;
    Random random(seed);
    CaseResult result;
    ops::UpdateTensors tensors;
    tensors.master = random_tensor(random, DType::kFloat32, {kElements}, 0.1);
    tensors.grad = filled_tensor(DType::kFloat32, {kElements}, 0);
    tensors.states[0].data = random_tensor(random, DType::kFloat32, {kElements}, 1e-3);
    const double squares[] = {0, 1e-40, 1e-30, 1, 1e30, 3e38, HUGE_VAL};
    std::vector<double> ev(kElements);
    for (size_t i = 0; i < ev.size(); ++i) ev[i] = squares[i % std::size(squares)];
    tensors.states[1].data = tensor_of(DType::kFloat32, {kElements}, ev);
    UpdateHyper hyper;
    hyper.step = 5;
    ev = doubles(tensors.states[1].data);  // as fp32 has them
    std::vector<double> ep = doubles(tensors.master), em = doubles(tensors.states[0].data);
    kernels::reference::adam(hyper, kElements, ep.data(), doubles(tensors.grad).data(), em.data(),
                             ev.data());
    Work(kElements).update(ctx, UpdateRule::kAdam, hyper, tensors);
    compare(result, "master", tensors.master, ep, {1e-6, 1e-8});
    return result;
  };
  return row;
}

// ---- 8-bit codes ----

// The numbers of the map, from its definition: decade k of `decades` below 1 is cut into 2^k equal
// parts and each part stands for its middle; the last one is 1.
std::vector<double> map_values(int decades) {
  std::vector<double> values = {0};
  for (int k = 0; k < decades; ++k) {
    const double high = std::pow(10.0, k - decades + 1), low = high / 10;
    const int parts = 1 << k;
    for (int i = 0; i < parts; ++i) values.push_back(low + (high - low) * (i + 0.5) / parts);
  }
  values.back() = 1;
  return values;
}

// A state for read_state and write_state: guarded memory of the host, or memory of the GPU.
Tensor state_tensor(const OpContext& ctx, DType dtype, int64_t n) {
  if (ctx.device->kind() == DeviceKind::kCpu) return guarded_tensor(dtype, {n});
  return Tensor::empty(ctx.device, dtype, {n}, MemoryTag::kOther);
}
// Its content where the host reads it.
Tensor readable(const OpContext& ctx, const Tensor& state) {
  if (ctx.device->kind() == DeviceKind::kCpu) return state;
  Tensor copy = guarded_tensor(state.dtype(), state.shape());
  copy_to_host(state, copy.raw());
  return copy;
}

// Every number becomes the nearest one of the map times its block's largest magnitude, but unsigned
// ones above zero stay above it; what was read back is written to the same codes.
OpCase codes_case(bool is_signed, int64_t n) {
  OpCase row;
  row.name = str_cat("codes/", is_signed ? "signed/" : "unsigned/", n);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const int64_t blocks = (n + kernels::kStateBlock - 1) / kernels::kStateBlock;
    ops::StateTensor state{state_tensor(ctx, is_signed ? DType::kInt8 : DType::kUInt8, n),
                           state_tensor(ctx, DType::kFloat32, blocks)};
    std::vector<float> values(static_cast<size_t>(n)), back(values.size()), again(values.size());
    std::uniform_real_distribution<double> decade(-9, 0), sign(-1, 1);
    const std::vector<double> map = map_values(is_signed ? 7 : 8);
    std::uniform_int_distribution<size_t> part(0, map.size() - 2);
    for (size_t i = 0; i < values.size(); ++i) {
      const double power = std::ldexp(1.0, static_cast<int>(i / 256 % 40) - 20);
      double fraction = std::pow(10.0, decade(random));
      // Every second block has a power of two as its scale and numbers right between two codes.
      if (i / 256 % 2 == 1) {
        const size_t code = part(random);
        const double beside = std::pow(10.0, -5 + 2 * sign(random));
        fraction = (map[code] + map[code + 1]) / 2 * (1 + (sign(random) < 0 ? -beside : beside));
        if (i % 256 == 0) fraction = 1;
      }
      values[i] = static_cast<float>(fraction * power);
      if (is_signed && sign(random) < 0) values[i] = -values[i];
      if (sign(random) < -0.95 && i % 256 != 0) values[i] = 0;
    }
    ops::write_state(state, 0, n, values.data());
    ops::read_state(state, 0, n, back.data());
    const Tensor scales = readable(ctx, state.scales), stored = readable(ctx, state.data);
    for (int64_t block = 0; block < blocks; ++block) {
      const auto begin = static_cast<size_t>(block * kernels::kStateBlock);
      const size_t end = std::min(begin + size_t{kernels::kStateBlock}, values.size());
      double largest = 0;
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(double{values[i]}));
      result.merge(scales.data<float>()[block] == static_cast<float>(largest) ? 0.0 : 1e9,
                   str_cat("scale of block ", block));
      for (size_t i = begin; i < end; ++i) {
        const double x = std::abs(double{values[i]});
        const bool may_be_zero = is_signed || x == 0;
        double nearest = HUGE_VAL;
        for (size_t c = may_be_zero ? 0 : 1; c < map.size(); ++c) {
          nearest = std::min(nearest, std::abs(map[c] * largest - x));
        }
        const double off = std::abs(double{back[i]} - double{values[i]});
        result.merge(off / (nearest * (1 + 1e-4) + 1e-6 * x + 1e-45),
                     str_cat("element ", i, ": ", values[i], " became ", back[i]));
        if (!is_signed && x > 0 && !(back[i] > 0)) result.merge(1e9, str_cat("zero at ", i));
      }
    }
    compare(result, "scales", scales, doubles(scales), {});
    std::vector<unsigned char> codes(values.size());
    std::memcpy(codes.data(), stored.raw(), codes.size());
    ops::write_state(state, 0, n, back.data());
    ops::read_state(state, 0, n, again.data());
    const bool same =
        std::memcmp(codes.data(), readable(ctx, state.data).raw(), codes.size()) == 0 &&
        (values.empty() ||
         std::memcmp(back.data(), again.data(), back.size() * sizeof(float)) == 0);
    result.merge(same ? 0.0 : 1e9, "codes changed when written again");
    if (!guards_intact(state.data)) result.merge(1e9, "bytes outside the codes were written");
    return result;
  };
  return row;
}

// ---- times ----

struct Storage {
  const char* name;
  DType grad;
  bool split;  // else fp32 masters
  bool model;
  DType state;
};

ops::StateTensor bench_state(const OpContext& ctx, DType dtype, int64_t n) {
  ops::StateTensor state{Tensor::zeros(ctx.device, dtype, {n}, MemoryTag::kOther), {}};
  if (dtype_size(dtype) == 1) {
    state.scales =
        Tensor::zeros(ctx.device, DType::kFloat32, {n / kernels::kStateBlock}, MemoryTag::kOther);
  }
  return state;
}

constexpr int64_t kBenchElements = int64_t{1} << 24;

ops::UpdateTensors bench_tensors(const OpContext& ctx, const Storage& storage, int states) {
  const auto make = [&](DType dtype) { return bench_tensor(ctx, dtype, {kBenchElements}); };
  ops::UpdateTensors tensors;
  tensors.grad = make(storage.grad);
  if (storage.split) {
    tensors.weight = make(DType::kBFloat16);
    tensors.low = Tensor::zeros(ctx.device, DType::kUInt16, {kBenchElements}, MemoryTag::kOther);
  } else {
    tensors.master = make(DType::kFloat32);
    if (storage.model) tensors.model = make(DType::kBFloat16);
  }
  for (int i = 0; i < states; ++i) {
    DType dtype = storage.state;
    if (dtype == DType::kInt8 && i == 1) dtype = DType::kUInt8;
    tensors.states[i] = bench_state(ctx, dtype, kBenchElements);
  }
  return tensors;
}

// Bytes per element: the gradient read, masters and states read and written, the model written.
double bytes_of(const Storage& storage, int states) {
  const auto size = [](DType dtype) { return static_cast<double>(dtype_size(dtype)); };
  return size(storage.grad) + 8 + (storage.model && !storage.split ? 2 : 0) +
         2 * states * size(storage.state);
}

OpCase bench(const char* rule_name, UpdateRule rule, const Storage& storage) {
  OpCase row;
  row.name = str_cat(rule_name, "/", storage.name, "/16M");
  const int states = kernels::update_states(rule);
  row.bytes = static_cast<double>(kBenchElements) * bytes_of(storage, states);
  // LAMB's second pass reads states and masters again.
  if (rule == UpdateRule::kLambMoments) {
    row.bytes += static_cast<double>(kBenchElements * 4 +
                                     kBenchElements * states * dtype_size(storage.state));
  }
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    ops::UpdateTensors tensors = bench_tensors(ctx, storage, states);
    UpdateHyper hyper;
    hyper.weight_decay = 0.1;
    return [=, work = Work(kBenchElements)]() mutable {
      if (rule == UpdateRule::kLambMoments) {
        work.lamb(ctx, hyper, tensors);
      } else {
        work.update(ctx, rule, hyper, tensors);
      }
      ++hyper.step;
    };
  };
  return row;
}

// The same work as adamw/bf16 gradient and model in one pass each, as frameworks do it: widen,
// unscale, update, narrow.
OpCase separate_bench(const Storage& storage) {
  OpCase row;
  row.name = str_cat("adamw_separate/", storage.name, "/16M");
  row.bytes = static_cast<double>(kBenchElements) * bytes_of(storage, 2);
  row.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    ops::UpdateTensors tensors = bench_tensors(ctx, storage, 2);
    Tensor grad = tensors.grad, model = tensors.model;
    tensors.model = Tensor();
    tensors.grad = bench_tensor(ctx, DType::kFloat32, {kBenchElements});
    UpdateHyper hyper;
    hyper.weight_decay = 0.1;
    return [=, work = Work(kBenchElements)]() mutable {
      ops::cast(ctx, grad, tensors.grad);
      ops::scale(ctx, tensors.grad, 0.5f, tensors.grad);
      work.update(ctx, UpdateRule::kAdam, hyper, tensors);
      ops::cast(ctx, tensors.master, model);
      ++hyper.step;
    };
  };
  return row;
}

void add_benches(std::vector<OpCase>& rows) {
  const Storage fp32{"fp32", DType::kFloat32, false, false, DType::kFloat32};
  const Storage copy{"fp32+bf16_copy", DType::kFloat32, false, true, DType::kFloat32};
  const Storage bf16{"bf16_in_out", DType::kBFloat16, false, true, DType::kFloat32};
  const Storage split{"bf16_split", DType::kBFloat16, true, false, DType::kFloat32};
  const Storage low{"bf16_split_bf16_states", DType::kBFloat16, true, false, DType::kBFloat16};
  const Storage codes{"bf16_split_int8_states", DType::kBFloat16, true, false, DType::kInt8};
  for (const Storage& storage : {fp32, copy, bf16, split, low, codes}) {
    rows.push_back(bench("adamw", UpdateRule::kAdam, storage));
  }
  rows.push_back(separate_bench(bf16));
  for (const Storage& storage : {fp32, low}) {
    rows.push_back(bench("adagrad", UpdateRule::kAdagrad, storage));
    rows.push_back(bench("lion", UpdateRule::kLion, storage));
    rows.push_back(bench("amsgrad", UpdateRule::kAmsgrad, storage));
    rows.push_back(bench("nadam", UpdateRule::kNadam, storage));
    rows.push_back(bench("rmsprop", UpdateRule::kRmsprop, storage));
    rows.push_back(bench("rmsprop_both", UpdateRule::kRmspropCenteredMomentum, storage));
    rows.push_back(bench("sgd", UpdateRule::kSgd, storage));
    rows.push_back(bench("sgd_momentum", UpdateRule::kMomentum, storage));
    rows.push_back(bench("lamb", UpdateRule::kLambMoments, storage));
  }
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const Variant& variant : variants()) {
    for (const int64_t n : {1, 17, 1003}) rows.push_back(steps_case(variant, n, 100));
    rows.push_back(steps_case(variant, 70001, 3));
  }
  rows.push_back(steps_case(variants().front(), 0, 1));
  for (const int64_t t : {1, 2, 1000, 1000000}) rows.push_back(single_step(t));
  rows.push_back(edges());
  for (const bool is_signed : {false, true}) {
    for (const int64_t n : {1, 7, 256, 10007}) rows.push_back(codes_case(is_signed, n));
  }
  add_benches(rows);
  return rows;
}

}  // namespace ds::testing::optimizer_rows
