// Optimizers that treat every element alike: Adam, AdamW, NAdam, RMSprop, Adagrad, Lion and SGD.
#include <algorithm>

#include "optim/flat_optimizer.h"

namespace ds::optim {
namespace {

struct Kind {
  kernels::UpdateRule rule;
  std::vector<NamedState> states;
};

bool any_momentum(const OptimizerConfig& config) {
  bool any = config.momentum != 0;
  for (const OptimizerGroupConfig& group : config.param_groups) {
    any = any || group.momentum.value_or(0) != 0;
  }
  return any;
}

Kind rmsprop_of(const OptimizerConfig& config) {
  using kernels::UpdateRule;
  const bool momentum = any_momentum(config);
  Kind kind{momentum ? UpdateRule::kRmspropMomentum : UpdateRule::kRmsprop,
            {{"square_avg", false}}};
  if (momentum) kind.states.push_back({"momentum_buffer", true});
  if (config.centered) {
    kind.rule = momentum ? UpdateRule::kRmspropCenteredMomentum : UpdateRule::kRmspropCentered;
    kind.states.push_back({"grad_avg", true});
  }
  return kind;
}

Kind kind_of(const OptimizerConfig& config) {
  switch (config.type) {
    case OptimizerType::kAdagrad:
      return {kernels::UpdateRule::kAdagrad, {{"sum", false, config.initial_accumulator_value}}};
    case OptimizerType::kNadam:
      return {kernels::UpdateRule::kNadam, {{"exp_avg", true}, {"exp_avg_sq", false}}};
    case OptimizerType::kRmsprop:
      return rmsprop_of(config);
    case OptimizerType::kLion:
      return {kernels::UpdateRule::kLion, {{"exp_avg", true}}};
    case OptimizerType::kSgd:
      if (!any_momentum(config)) return {kernels::UpdateRule::kSgd, {}};
      return {kernels::UpdateRule::kMomentum, {{"momentum_buffer", true}}};
    default:
      if (config.amsgrad) {
        return {kernels::UpdateRule::kAmsgrad,
                {{"exp_avg", true}, {"exp_avg_sq", false}, {"max_exp_avg_sq", false}}};
      }
      return {kernels::UpdateRule::kAdam, {{"exp_avg", true}, {"exp_avg_sq", false}}};
  }
}

class Elementwise : public FlatOptimizer {
 public:
  explicit Elementwise(Setup setup)
      : FlatOptimizer(std::move(setup)), kind_(kind_of(whole_config())) {
    StateSpace::Options options;
    options.states = kind_.states;
    options.key = [this](size_t tensor) { return hyper_key(tensor); };
    add_space(make_space(std::move(options)));
  }

  bool takes_gate() const override { return true; }

  void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) override {
    begin_step(step, tensors);
    const std::vector<kernels::UpdateConstants> all =
        constants(kind_.rule, step, [&](size_t group) { return step.rates[group]; });
    update_runs(ctx, space(0), tensors, Writes::kBoth,
                [&](const StateRun& run, ops::UpdateTensors& part) {
                  ops::UpdateWork work = run.work(all);
                  work.gate = step.gate;
                  ops::optimizer_update(ctx, kind_.rule, work, part);
                });
    end_step();
  }

 private:
  Kind kind_;
};

}  // namespace

std::unique_ptr<Optimizer> make_elementwise(Setup setup) {
  return std::make_unique<Elementwise>(std::move(setup));
}

}  // namespace ds::optim
