// Optimizers that treat every element alike: Adam, AdamW, Adagrad, Lion and SGD.
#include <algorithm>

#include "optim/flat_optimizer.h"

namespace ds::optim {
namespace {

struct Kind {
  kernels::UpdateRule rule;
  std::vector<NamedState> states;
};

Kind kind_of(const OptimizerConfig& config) {
  switch (config.type) {
    case OptimizerType::kAdagrad:
      return {kernels::UpdateRule::kAdagrad, {{"sum", false}}};
    case OptimizerType::kLion:
      return {kernels::UpdateRule::kLion, {{"exp_avg", true}}};
    case OptimizerType::kSgd: {
      const auto moves = [](double momentum) { return momentum != 0; };
      bool momentum = moves(config.momentum);
      for (const OptimizerGroupConfig& group : config.groups) {
        momentum = momentum || moves(group.momentum.value_or(0));
      }
      if (!momentum) return {kernels::UpdateRule::kSgd, {}};
      return {kernels::UpdateRule::kMomentum, {{"momentum_buffer", true}}};
    }
    default:
      return {kernels::UpdateRule::kAdam, {{"exp_avg", true}, {"exp_avg_sq", false}}};
  }
}

class Elementwise : public FlatOptimizer {
 public:
  explicit Elementwise(Setup setup)
      : FlatOptimizer(std::move(setup)), kind_(kind_of(whole_config())) {
    StateSpace::Options options;
    options.states = kind_.states;
    options.key = [this](size_t tensor) { return hyper_key(place(tensor)); };
    add_space(make_space(std::move(options)));
  }

  bool takes_gate() const override { return true; }

  void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) override {
    begin_step(step, tensors);
    const std::vector<kernels::UpdateConstants> all =
        constants(kind_.rule, step, [&](size_t group) { return step.rates[group]; });
    for (const StateRun& run : space(0).runs()) {
      ops::UpdateWork work = run.work(all);
      work.gate = step.gate;
      update_run(0, run, tensors, true, [&](ops::UpdateTensors& part) {
        ops::optimizer_update(ctx, kind_.rule, work, part);
      });
    }
    ++steps_;
  }

 private:
  Kind kind_;
};

}  // namespace

std::unique_ptr<Optimizer> make_elementwise(Setup setup) {
  return std::make_unique<Elementwise>(std::move(setup));
}

}  // namespace ds::optim
