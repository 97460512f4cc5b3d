// Optimizers that treat every element alike: Adam, AdamW, NAdam, RMSprop, Adagrad, Lion and SGD.
#include <algorithm>

#include "ops/elementwise.h"
#include "optim/early_updates.h"
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

  bool takes_gate() const override { return early_ == nullptr; }

  void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) override {
    take_ahead(step);
    begin_step(step, tensors);
    const std::vector<kernels::UpdateConstants> all =
        constants(kind_.rule, step, [&](size_t group) { return step.rates[group]; });
    const auto update = [&](const OpContext& there, const StateRun& run, ops::UpdateTensors& part) {
      ops::UpdateWork work = run.work(all);
      work.gate = step.gate;
      ops::optimizer_update(there, kind_.rule, work, part);
    };
    if (ahead_.share > 0) {
      update_what_is_left(ctx, tensors, update);
    } else {
      update_runs(ctx, space(0), tensors, Writes::kBoth, update);
    }
    end_step();
  }

  void go_ahead(const FlatTensors& tensors, int threads) override {
    early_ = std::make_unique<EarlyUpdates>(space(0), tensors, state_device(), threads);
  }

  void expect_step(const OpContext& ctx, const UpdateStep& step,
                   const FlatTensors& tensors) override {
    undo_ahead();
    begin_step(step, tensors);
    expected_ = step;
    auto all = constants(kind_.rule, step, [&](size_t group) { return step.rates[group]; });
    early_->open(ctx, tensors,
                 [rule = kind_.rule, all = std::move(all)](
                     const OpContext& beside, const StateRun& run, ops::UpdateTensors& part) {
                   ops::optimizer_update(beside, rule, run.work(all), part);
                 });
  }
  void gradient_complete(size_t tensor) override { early_->gradient_complete(tensor); }
  void undo_ahead() override { undo(); }
  std::optional<Ahead> ahead() const override {
    if (!early_) return {};
    return expected_ ? Ahead{made_share(), undone_} : ahead_;
  }

  // Whoever looks at states sees those of the last step.
  void read_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                        float* out) const override {
    undo();
    FlatOptimizer::read_state_range(tensor, state, begin, end, out);
  }
  void write_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                         const float* values) override {
    undo();
    FlatOptimizer::write_state_range(tensor, state, begin, end, values);
  }
  Tensor state_view(size_t tensor, const std::string& state) const override {
    undo();
    return FlatOptimizer::state_view(tensor, state);
  }
  void begin_load() override { undo(); }

 private:
  void undo() const {
    expected_.reset();
    if (early_ && early_->undo()) undone_ = true;
  }

  // What was made ahead, if it was made for this step.
  void take_ahead(const UpdateStep& step) {
    if (!early_) return;
    early_->close();
    if (!expected_ || !same_update(*expected_, step)) undo();
    expected_.reset();
    ahead_ = {made_share(), std::exchange(undone_, false)};
  }

  double made_share() const {
    int64_t all = 0;
    for (const StateRun& run : space(0).runs()) all += run.end - run.begin;
    if (all == 0) return 0;
    return static_cast<double>(early_->made_elements()) / static_cast<double>(all);
  }

  // Of what is updated, the copies that the model computes with are made.
  void update_what_is_left(const OpContext& ctx, const FlatTensors& tensors,
                           const UpdateRun& update) {
    const std::span<const StateRun> runs = space(0).runs();
    for (size_t i = 0; i < runs.size(); ++i) {
      if (early_->made(i)) {
        publish(ctx, space(0), runs[i], tensors);
      } else {
        update_run(ctx, space(0), runs[i], nullptr, tensors, Writes::kBoth, update);
      }
    }
    early_->keep();
  }

  Kind kind_;
  mutable std::optional<UpdateStep> expected_;
  mutable bool undone_ = false;  // since the last step
  Ahead ahead_;
  std::unique_ptr<EarlyUpdates> early_;  // null: all is updated in step(); last: it uses the above
};

}  // namespace

std::unique_ptr<Optimizer> make_elementwise(Setup setup) {
  return std::make_unique<Elementwise>(std::move(setup));
}

}  // namespace ds::optim
