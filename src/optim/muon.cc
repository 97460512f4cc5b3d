// Muon: momentum orthogonalised by Newton-Schulz for matrices, Adam for the rest.
//
// A parameter is a matrix when it has two or more dimensions and its name holds neither "embed" nor
// "lm_head" in any case. Three dimensions are a stack of matrices, each orthogonalised by itself;
// four and more are seen as first x rest, and the factor sqrt(max(1, rows / columns)) is that of
// this view (DeepSpeed takes it from the last two dimensions of a 4-D weight).
#include <algorithm>
#include <cctype>
#include <cmath>

#include "optim/flat_optimizer.h"
#include "optim/newton_schulz.h"

namespace ds::optim {
namespace {

bool is_matrix(const TensorPlace& place) {
  std::string name = place.name;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return place.shape.dims() >= 2 && name.find("embed") == std::string::npos &&
         name.find("lm_head") == std::string::npos;
}

// The matrices of a tensor: [count, rows, columns].
Shape stack_of(const Shape& shape) {
  if (shape.dims() == 3) return shape;
  const int64_t rows = shape[0];
  return {1, rows, rows == 0 ? 0 : shape.elements() / rows};
}

class Muon : public FlatOptimizer {
 public:
  explicit Muon(Setup setup) : FlatOptimizer(std::move(setup)) {
    for (const TensorPlace& one : places()) {
      if (is_matrix(one) && touched(one)) need_whole(one, "Muon needs whole matrices");
    }
    // Two rates per group: of its matrices and of the rest.
    rates_.clear();
    for (size_t i = 0; i < group_count(); ++i) {
      rates_.push_back(group(static_cast<int32_t>(i)).lr);
      rates_.push_back(group(static_cast<int32_t>(i)).adam_lr);
    }
    StateSpace::Options matrices;
    matrices.states = {{"momentum_buffer", true}};
    matrices.member = is_matrix;
    matrices.run_per_tensor = true;
    matrices.key = [this](size_t tensor) { return hyper_key(place(tensor)); };
    StateSpace::Options rest = matrices;
    rest.states = {{"exp_avg", true}, {"exp_avg_sq", false}};
    rest.member = [](const TensorPlace& one) { return !is_matrix(one); };
    rest.run_per_tensor = false;
    add_space(make_space(std::move(matrices)));
    add_space(make_space(std::move(rest)));
  }

  void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) override {
    begin_step(step, tensors);
    for (const StateRun& run : space(0).runs()) update_matrix(ctx, step, run, tensors);

    const std::vector<kernels::UpdateConstants> adam = constants(
        kernels::UpdateRule::kAdam, step, [&](size_t i) { return step.rates[2 * i + 1]; });
    for (const StateRun& run : space(1).runs()) {
      ops::UpdateTensors part = space(1).slices(run, tensors);
      ops::optimizer_update(ctx, kernels::UpdateRule::kAdam, {adam, run.pieces, run.first}, part);
    }
    ++steps_;
  }

 private:
  void update_matrix(const OpContext& ctx, const UpdateStep& step, const StateRun& run,
                     FlatTensors& tensors) {
    const TensorPlace& one = place(run.place);
    const Shape stack = stack_of(one.shape);
    Tensor direction = ctx.workspace(DType::kFloat32, {run.end - run.begin});
    ops::UpdateTensors part = space(0).slices(run, tensors);
    ops::UpdateTensors first;
    first.master = direction;
    first.grad = part.grad;
    first.states[0] = part.states[0];
    const OptimizerConfig& config = group(one.group);
    const auto update = [&](kernels::UpdateRule rule, const kernels::UpdateHyper& hyper,
                            ops::UpdateTensors& arrays, double decay) {
      kernels::UpdateConstants c = kernels::update_constants(rule, hyper);
      c.decoupled_decay = static_cast<float>(decay);
      // The run has this tensor alone, so that its pieces are alike whatever their key.
      const std::vector<kernels::UpdateConstants> all(2 * group_count(), c);
      ops::optimizer_update(ctx, rule, {all, run.pieces, run.first}, arrays);
    };
    kernels::UpdateHyper hyper;
    hyper.beta1 = step.beta1.value_or(config.momentum);
    hyper.grad_scale = step.grad_scale;
    update(kernels::UpdateRule::kMuonMomentum, hyper, first, 0);

    const Tensor matrices = direction.view(stack);
    for (int64_t i = 0; i < stack[0]; ++i) {
      Tensor matrix = matrices.select(0, i);
      orthogonalise(ctx, matrix, config.ns_method);
    }

    const double lr = step.rates[2 * static_cast<size_t>(one.group)];
    const double shape_factor =
        std::sqrt(std::max(1.0, static_cast<double>(stack[1]) / static_cast<double>(stack[2])));
    hyper.lr = lr * shape_factor;
    hyper.grad_scale = 1;
    part.grad = direction;
    update(kernels::UpdateRule::kSgd, hyper, part, one.decays ? lr * config.weight_decay : 0.0);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(Setup setup) {
  return std::make_unique<Muon>(std::move(setup));
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                          std::vector<TensorPlace> places,
                                          const std::shared_ptr<Device>& device) {
  Setup setup{config, std::move(places), device};
  switch (config.type) {
    case OptimizerType::kLamb:
      return make_lamb(std::move(setup));
    case OptimizerType::kMuon:
      return make_muon(std::move(setup));
    default:
      return make_elementwise(std::move(setup));
  }
}

std::vector<TensorPlace> owned_places(std::vector<TensorPlace> whole, int64_t from, int64_t to) {
  for (TensorPlace& place : whole) {
    const int64_t begin = std::clamp(from, place.begin, place.end);
    const int64_t end = std::max(begin, std::min(to, place.end));
    place.first = begin - place.begin;
    place.begin = place.flat = begin;
    place.end = end;
  }
  return whole;
}

}  // namespace ds::optim
