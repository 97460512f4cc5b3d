#include "engine/updater.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/reduce.h"
#include "ops/update_gate.h"
#include "optim/groups.h"
#include "tensor/transfer.h"
#include "zero/gradient_values.h"
#include "zero/state_files.h"

namespace ds {
namespace {

std::vector<optim::TensorPlace> find_places(const OptimizerConfig& config,
                                            const zero::TrainState& state) {
  const nn::ParameterSet& parameters = state.parameters();
  const std::vector<int32_t> groups = optim::assign_groups(config, parameters);
  std::vector<optim::TensorPlace> places;
  for (const nn::ParamId id : state.layout().flat().order()) {
    const nn::Parameter& p = parameters[id];
    if (!p.trainable) continue;
    const zero::OwnedPart part = state.layout().flat().part(id);
    const int64_t begin = part.count == 0 ? 0 : part.owned;
    const int32_t group = groups[static_cast<size_t>(id)];
    const optim::WidthFactors factors = optim::width_factors(config, p);
    places.push_back({p.name, p.shape, begin, begin + part.count, group,
                      optim::decays_in(config, p, group), part.first, part.flat, factors.rate,
                      factors.decay});
  }
  return places;
}

// OneCycle moves `betas`, as DeepSpeed does, and no other momentum.
bool cycles_momentum(OptimizerType type) {
  switch (type) {
    case OptimizerType::kAdam:
    case OptimizerType::kAdamW:
    case OptimizerType::kLamb:
    case OptimizerType::kLion:
      return true;
    default:
      return false;
  }
}

optim::ShardGroups find_shard_groups(const zero::TrainState& state) {
  std::vector<nn::ParamId> trainable;
  for (const nn::ParamId id : state.layout().flat().order()) {
    if (state.parameters()[id].trainable) trainable.push_back(id);
  }
  return state.shard_groups(trainable);
}

// That are updated at a time ahead of their step: the smaller, the earlier the first ones begin.
int64_t elements_ahead(const Config& config) {
  constexpr int64_t kMost = int64_t{2} << 20;
  return zero::StateFiles::most_of(std::min(config.zero.sub_group_size, kMost));
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config,
                                                 const OptimizerConfig& optimizer,
                                                 const std::vector<optim::TensorPlace>& places,
                                                 const zero::TrainState& state, bool ahead) {
  const zero::StateArrays& arrays = state.arrays();
  const auto& zenflow = config.zero.zenflow;
  if (!zenflow) {
    return optim::make_optimizer(optimizer, places, arrays.state_memory(), find_shard_groups(state),
                                 state.offload_store(), arrays.factory,
                                 ahead ? elements_ahead(config) : 0);
  }
  return optim::make_zenflow(optimizer, *zenflow, places, arrays.state_memory(),
                             find_shard_groups(state), state.offload_store(), arrays.factory);
}

// Of the update that runs beside the passes.
int threads_ahead(const Config& config) {
  const int all = config.threads > 0 ? config.threads : ThreadPool::available_cpus();
  return std::max(1, static_cast<int>(config.zero.offload_optimizer->cpuadam_cores_perc * all));
}

// Names what made the norm infinite or NaN.
void find_bad_gradient(const OpContext& ctx, const zero::TrainState& state,
                       Updater::Outcome& outcome) {
  const zero::BadGradient bad = zero::first_bad_gradient(ctx, state.gradients());
  outcome.first_bad_tensor =
      bad.id == nn::kNoParam ? "(the sum of squares overflowed)" : state.parameters()[bad.id].name;
  outcome.first_bad_element = bad.element;
  outcome.first_bad_value = bad.value;
}

}  // namespace

Updater::Updater(const Config& config, const zero::TrainState& state, bool ahead)
    : optimizer_config_(config.optimizer.value_or(OptimizerConfig{})),
      clipping_(config.gradient_clipping),
      skip_above_(config.gradient_skip_norm),
      may_skip_(config.precision.compute != Precision::kBf16 ||
                config.precision.check_grad_overflow),
      ahead_(ahead),
      max_consecutive_skips_(config.max_consecutive_skips),
      device_(state.arrays().state_memory()),
      places_(find_places(optimizer_config_, state)),
      optimizer_(make_optimizer(config, optimizer_config_, places_, state, ahead)),
      scaler_(config.precision) {
  // Muon has two rates per group.
  const std::span<const double> rates = optimizer_->base_rates();
  const size_t per_group = rates.size() / (optimizer_config_.param_groups.size() + 1);
  for (size_t i = 0; i < rates.size(); ++i) {
    schedules_.emplace_back(config.scheduler, rates[i], i / per_group);
  }
  rates_.resize(schedules_.size());
  follow_schedule();
  if (ahead_) optimizer_->go_ahead(state.arrays().flat, threads_ahead(config));
  place_of_.assign(static_cast<size_t>(state.parameters().size()), -1);
  for (size_t i = 0; i < places_.size(); ++i) {
    place_of_[static_cast<size_t>(state.parameters().find(places_[i].name))] =
        static_cast<int64_t>(i);
  }
}

void Updater::follow_schedule() {
  for (size_t i = 0; i < rates_.size(); ++i) rates_[i] = schedules_[i].lr(schedule_steps());
}

Updater::Outcome Updater::update(const OpContext& ctx, zero::TrainState& state, double share) {
  Outcome outcome;
  outcome.lr = rates_.empty() ? 0 : rates_.front();
  outcome.loss_scale = scaler_.scale();
  const kernels::GateRule rule = gate_rule(share);
  const bool gated =
      device_->kind() == DeviceKind::kCuda && !state.shared() && optimizer_->takes_gate();
  const kernels::UpdateGate gate =
      gated ? update_with_gate(ctx, state, rule) : update_after_norm(ctx, state, rule);
  const bool finite = std::isfinite(gate.norm);
  outcome.grad_norm = finite ? gate.norm : -1;
  if (!finite) find_bad_gradient(ctx, state, outcome);
  outcome.applied = gate.open != 0;
  plain_ = outcome.applied && gate.grad_scale == plain_scale();
  if (outcome.applied) {
    outcome.extent = optimizer_->extent();
    outcome.ahead = optimizer_->ahead();
    if (!schedules_.empty() && schedules_.front().active()) follow_schedule();
    consecutive_skips_ = 0;
  } else {
    ++consecutive_skips_;
  }
  scaler_.update(!finite);
  return outcome;
}

kernels::GateRule Updater::gate_rule(double share) const {
  return {scaler_.scale(), share, clipping_, may_skip_, skip_above_};
}

// Of gradients that are neither clipped nor uneven.
float Updater::plain_scale() const { return kernels::decide_update(0, gate_rule(1)).grad_scale; }

void Updater::update_ahead(zero::TrainState& state, const OpContext& ctx) {
  if (!ahead_ || !plain_) return;
  const zero::StateArrays& arrays = state.arrays();
  arrays.hold_masters();
  optim::UpdateStep step = next_step();
  step.epoch_steps = epoch_steps_;
  step.grad_scale = plain_scale();
  optimizer_->expect_step(arrays.state_context(ctx), step, arrays.flat);
  state.gradients().tell_complete(
      [this](nn::ParamId id) { optimizer_->gradient_complete(place(id)); });
}

optim::UpdateStep Updater::next_step() const {
  optim::UpdateStep step;
  step.rates = rates_;
  if (!schedules_.empty() && cycles_momentum(optimizer_config_.type)) {
    step.beta1 = schedules_.front().beta1(schedule_steps());
    step.beta2 = schedules_.front().beta2();
  }
  if (optimizer_config_.weight_decay_schedule) {
    step.weight_decay =
        optim::scheduled_decay(*optimizer_config_.weight_decay_schedule, schedule_steps());
  }
  return step;
}

std::string Updater::describe_decay() const {
  int64_t decaying = 0, spared = 0;
  for (const optim::TensorPlace& place : places_) ++(place.decays ? decaying : spared);
  const auto& schedule = optimizer_config_.weight_decay_schedule;
  double decay =
      schedule ? std::max(schedule->start, schedule->end) : optimizer_config_.weight_decay;
  for (const OptimizerGroupConfig& group : optimizer_config_.param_groups) {
    decay = std::max(decay, group.weight_decay.value_or(0));
  }
  if (decay == 0 || spared == 0) return {};
  return str_cat("weight decay applies to ", decaying, " of ", decaying + spared,
                 " parameters, and not to norms and biases; a group's own weight_decay, or "
                 "optimizer.decay_all, includes them");
}

// The host decides.
kernels::UpdateGate Updater::update_after_norm(const OpContext& ctx, zero::TrainState& state,
                                               const kernels::GateRule& rule) {
  const double norm = std::sqrt(zero::gradient_squares(ctx, state.gradients()).value());
  const kernels::UpdateGate gate = kernels::decide_update(norm, rule);
  if (gate.open == 0) {
    optimizer_->undo_ahead();
    return gate;
  }
  optim::UpdateStep step = next_step();
  step.norm = norm;
  step.epoch_steps = epoch_steps_;
  step.grad_scale = gate.grad_scale;
  state.commit(ctx, [&](const OpContext& there, optim::FlatTensors& flat) {
    optimizer_->step(there, step, flat);
  });
  return gate;
}

// The GPU decides; the host waits when everything is queued, and while the update still runs.
kernels::UpdateGate Updater::update_with_gate(const OpContext& ctx, zero::TrainState& state,
                                              const kernels::GateRule& rule) {
  Tensor squares = ctx.workspace(DType::kInt64, {ExactSum::kWords});
  ops::exact_squares(ctx, state.gradients().all(), squares);
  optim::UpdateStep step = next_step();
  step.gate = ops::update_gate(ctx, squares, rule);
  Fetched fetched(step.gate);
  const int64_t steps = optimizer_->steps();
  state.commit(ctx, [&](const OpContext& there, optim::FlatTensors& flat) {
    optimizer_->step(there, step, flat);
  });
  kernels::UpdateGate gate;
  std::memcpy(&gate, fetched.host().raw(), sizeof gate);
  if (gate.open == 0) optimizer_->set_steps(steps);
  return gate;
}

std::string Updater::stop_reason() const {
  if (scaler_.exhausted()) {
    return str_cat("gradients overflow at the smallest loss scale, ", scaler_.scale(),
                   ": the loss or the weights have diverged");
  }
  if (max_consecutive_skips_ > 0 && consecutive_skips_ >= max_consecutive_skips_) {
    return str_cat(consecutive_skips_,
                   " steps in a row were skipped, as many as max_consecutive_skips allows");
  }
  return {};
}

void Updater::set_rates(double lr) {
  DS_CHECK(std::isfinite(lr) && lr >= 0, Code::kInvalidArgument,
           "the learning rate must be finite and not negative, not ", lr);
  std::fill(rates_.begin(), rates_.end(), lr);
}

size_t Updater::place(nn::ParamId id) const {
  const int64_t place = place_of_[static_cast<size_t>(id)];
  DS_CHECK(place >= 0, Code::kNotFound,
           "the parameter is frozen: it has no gradient and no optimizer state");
  return static_cast<size_t>(place);
}

Json Updater::save() const {
  Json out = {{"steps", optimizer_->steps()},
              {"schedule_steps", schedule_steps()},
              {"rates", rates_},
              {"loss_scaler", scaler_.save()},
              {"consecutive_skips", consecutive_skips_}};
  if (Json optimizer = optimizer_->save(); !optimizer.is_null()) {
    out["optimizer"] = std::move(optimizer);
  }
  return out;
}

Updater::Saved Updater::read(const Json& saved, const Rules& rules) const {
  const auto field = [](const Json& object, const char* key) -> const Json& {
    DS_CHECK(object.is_object() && object.contains(key), Code::kCorrupt,
             "the checkpoint's optimizer state lacks ", key);
    return object.at(key);
  };
  const auto number = [](const Json& value) {
    DS_CHECK(value.is_number(), Code::kCorrupt,
             "the checkpoint's optimizer state holds something else than a number");
    return value.get<double>();
  };
  const auto integer = [&](const Json& object, const char* key) {
    const Json& value = field(object, key);
    DS_CHECK(value.is_number_integer(), Code::kCorrupt, "the checkpoint's optimizer state holds ",
             key, " that is no integer");
    return value.get<int64_t>();
  };
  Saved out;
  out.rules = rules;
  out.steps = integer(saved, "steps");
  out.consecutive_skips = integer(saved, "consecutive_skips");
  // Version 0.4 and earlier had one count.
  out.schedule_steps =
      saved.contains("schedule_steps") ? integer(saved, "schedule_steps") : out.steps;
  DS_CHECK(out.steps >= 0 && out.schedule_steps >= 0 && out.consecutive_skips >= 0, Code::kCorrupt,
           "the checkpoint's optimizer state counts below 0");
  const Json& rates = field(saved, "rates");
  DS_CHECK(rates.is_array(), Code::kCorrupt, "the checkpoint's optimizer state has no rates");
  for (const Json& rate : rates) {
    out.rates.push_back(number(rate));
    DS_CHECK(std::isfinite(out.rates.back()) && out.rates.back() >= 0, Code::kCorrupt,
             "the checkpoint's optimizer state holds the learning rate ", out.rates.back());
  }
  out.scaler = scaler_;
  const Json& scaler = field(saved, "loss_scaler");
  out.gradient_scale = number(field(scaler, "scale"));
  DS_CHECK(std::isfinite(out.gradient_scale) && out.gradient_scale > 0, Code::kCorrupt,
           "the checkpoint's loss scale is ", out.gradient_scale);
  if (rules.optimizer && rules.scale_moves) out.scaler.restore(scaler);
  if (const auto optimizer = saved.find("optimizer"); optimizer != saved.end()) {
    out.optimizer = *optimizer;
  }
  if (rules.optimizer) optimizer_->check_saved(out.optimizer);
  return out;
}

void Updater::restore(Saved saved) {
  const Rules& rules = saved.rules;
  const int64_t position = rules.schedule ? saved.schedule_steps : schedule_steps();
  if (rules.optimizer) {
    optimizer_->set_steps(saved.steps);
    optimizer_->restore(saved.optimizer);
    scaler_ = saved.scaler;
    consecutive_skips_ = saved.consecutive_skips;
  }
  schedule_lead_ = position - optimizer_->steps();
  if (!rules.schedule) return;
  if (rules.same_rates && saved.rates.size() == rates_.size()) {
    rates_ = std::move(saved.rates);
  } else {
    follow_schedule();
  }
}

}  // namespace ds
