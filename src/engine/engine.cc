#include "engine/engine.h"

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/log.h"
#include "models/inputs.h"
#include "nn/layers.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/clip.h"

namespace ds {

// What lives between forward and backward.
struct Engine::Pending {
  Pending(const OpContext& ctx, zero::ParameterState& state, const nn::TapeOptions& options)
      : tape(ctx, state, options) {}
  nn::Tape tape;
  nn::Value loss;
};

namespace {

constexpr std::array kPhases = {"forward", "backward", "step"};

ConfigEnvironment environment_of(const Communicator* comm) {
  ConfigEnvironment environment;
  environment.data_parallel_size = comm == nullptr ? 1 : comm->size();
  return environment;
}

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::unique_ptr<MonitorSet> make_monitors(const Config& config) {
  const auto options = [](const MonitorConfig& monitor) {
    return MonitorOptions{monitor.enabled, monitor.output_path, monitor.job_name};
  };
  MonitorSetOptions all;
  all.tensorboard = options(config.tensorboard);
  all.csv = options(config.csv_monitor);
  if (config.jsonl_monitor.enabled) {
    const std::filesystem::path folder = monitor_folder(options(config.jsonl_monitor), "jsonl");
    all.json_lines = {true, (folder / "metrics.jsonl").string()};
  }
  return std::make_unique<MonitorSet>(all);
}

optim::AdamOptions adam_options(const OptimizerConfig& config, const PrecisionConfig& precision) {
  const bool adam = config.type == OptimizerType::kAdam || config.type == OptimizerType::kAdamW;
  DS_CHECK(adam && config.groups.empty() && config.state_type == OptimizerStateType::kFp32,
           Code::kUnsupported,
           "the engine of this build runs Adam and AdamW with fp32 states and one group only");
  DS_CHECK(precision.compute != Precision::kFp16 && !precision.split_master &&
               precision.accumulate == Precision::kFp32,
           Code::kUnsupported,
           "the engine of this build runs fp32 and bf16 with fp32 masters and gradients only");
  return {config.beta1,        config.beta2,     config.eps,
          config.weight_decay, config.decoupled, config.bias_correction};
}

}  // namespace

Engine::Engine(std::string_view config_json, std::shared_ptr<models::Model> model,
               std::shared_ptr<Communicator> comm)
    : config_(load_config(config_json, environment_of(comm.get()))),
      model_(std::move(model)),
      comm_(comm ? std::move(comm) : make_single_communicator()),
      pool_(config_.threads),
      schedule_(config_.scheduler, config_.optimizer.value_or(OptimizerConfig{}).lr) {
  for (const std::string& warning : config_.warnings()) log_warning("config", warning);
  monitors_ = make_monitors(config_);
  const models::Model::Use use(*model_);
  model_->attach_engine();
  try {
    zero::ParameterState& state = model_->state();
    state.set_compute_type(context(), config_.precision.compute == Precision::kBf16
                                          ? DType::kBFloat16
                                          : DType::kFloat32);
    state.allocate_gradients();
    const zero::FlatRange shard = state.layout().shard(comm_->rank(), comm_->size());
    adam_ = std::make_unique<optim::Adam>(
        adam_options(config_.optimizer.value_or(OptimizerConfig{}), config_.precision),
        model_->device(), shard.begin, shard.end);
    lr_ = schedule_.lr(0);
    if (config_.dump_state) log_info("engine", dump_json(config_document()));
  } catch (...) {
    model_->state().free_gradients();
    model_->detach_engine();
    throw;
  }
}

Engine::~Engine() {
  pending_.reset();
  try {
    model_->state().free_gradients();
    model_->state().set_compute_type(context(), DType::kFloat32);
  } catch (const std::exception& error) {
    log_warning("engine", error.what());
  }
  model_->detach_engine();
}

models::Batch Engine::make_batch(const Tensor& ids, const Tensor& mask) {
  const models::ArchitectureInfo& info = model_->architecture().info();
  models::Batch batch;
  batch.ids = models::token_ids(context(), ids, "token ids", info.vocab_size);
  DS_CHECK(ids.size(1) <= info.max_positions, Code::kInvalidArgument, "sequences of ", ids.size(1),
           " tokens are longer than the model's ", info.max_positions, " positions");
  batch.key_mask = models::key_mask(context(), mask, ids);
  batch.position_ids = models::position_ids(context(), ids.size(0), ids.size(1), 0);
  return batch;
}

Tensor Engine::forward(const Tensor& ids, const Tensor& labels, const Tensor& mask) {
  DS_CHECK(phase_ != Phase::kForwardDone, Code::kState,
           "the last forward still waits for its backward");
  DS_CHECK(phase_ != Phase::kBackwardDone, Code::kState, "the last backward still waits for step");
  const models::Model::Use use(*model_);
  const models::Batch batch = make_batch(ids, mask);
  return run_forward(
      batch, models::label_ids(context(), labels, ids, model_->architecture().info().vocab_size));
}

Tensor Engine::run_forward(const models::Batch& batch, const Tensor& labels) {
  if (!step_began_) step_began_ = now_seconds();
  const ScopedTimer timer = time_phase("forward");
  nn::TapeOptions options;
  options.seed = config_.seed;
  options.step = static_cast<uint32_t>(progress_.micro_steps);
  options.first_sample = comm_->rank() * batch.ids.size(0);
  auto pending = std::make_unique<Pending>(context(), model_->state(), options);
  models::ForwardOptions forward_options;
  if (config_.activation_checkpointing.enabled) {
    forward_options.checkpoint_segments =
        config_.activation_checkpointing.segments.value_or(model_->architecture().info().layers);
  }
  const nn::Value logits = model_->architecture().logits(pending->tape, batch, forward_options);
  int64_t counted = 0;
  pending->loss = nn::cross_entropy(pending->tape, logits, labels,
                                    model_->architecture().info().vocab_size, counted);
  pending_ = std::move(pending);
  phase_ = Phase::kForwardDone;
  model_->set_step_open(true);
  loss_sum_ += *pending_->loss.data.data<float>();
  step_tokens_ += counted;
  progress_.tokens += counted;
  progress_.samples += batch.ids.size(0) * comm_->size();
  return pending_->loss.data;
}

void Engine::backward(const Tensor& loss) {
  DS_CHECK(phase_ == Phase::kForwardDone, Code::kState, "backward needs a forward before it");
  DS_CHECK(loss && loss.storage() == pending_->loss.data.storage(), Code::kInvalidArgument,
           "this is not the loss of the last forward");
  const models::Model::Use use(*model_);
  run_backward();
}

void Engine::run_backward() {
  const ScopedTimer timer = time_phase("backward");
  Tensor upstream = context().workspace(DType::kFloat32, {});
  *upstream.data<float>() = 1.0f / static_cast<float>(config_.batch.accumulation);
  try {
    pending_->loss.slot->add(context(), upstream, true);
    pending_->tape.backward();
  } catch (...) {
    drop_open_step();
    throw;
  }
  pending_.reset();
  phase_ = Phase::kBackwardDone;
}

// A backward that failed has added an unknown part of its gradients: the whole open step is given
// up, so that the weights stay as after the last update.
void Engine::drop_open_step() {
  pending_.reset();
  phase_ = Phase::kIdle;
  accumulated_ = 0;
  loss_sum_ = 0;
  step_tokens_ = 0;
  step_began_.reset();
  model_->state().clear_gradients(context());
  model_->set_step_open(false);
}

StepReport Engine::step() {
  DS_CHECK(phase_ == Phase::kBackwardDone, Code::kState, "step needs a backward before it");
  const models::Model::Use use(*model_);
  return finish_micro_batch();
}

StepReport Engine::finish_micro_batch() {
  phase_ = Phase::kIdle;
  ++progress_.micro_steps;
  ++accumulated_;
  if (accumulated_ < config_.batch.accumulation) {
    StepReport report;
    report.progress = progress_;
    report.skip_reason = SkipReason::kAccumulating;
    report.loss = loss_sum_ / static_cast<double>(accumulated_);
    report.lr = lr_;
    report.tokens = step_tokens_;
    return report;
  }
  StepReport report = apply_update();
  write_metrics(report);
  return report;
}

StepReport Engine::apply_update() {
  const ScopedTimer timer = time_phase("step");
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  Tensor& gradients = state.gradients();

  StepReport report;
  report.lr = lr_;
  report.loss = loss_sum_ / static_cast<double>(config_.batch.accumulation);
  report.tokens = step_tokens_;

  const double norm = std::sqrt(ops::sum_squares(ctx, gradients));
  const bool finite = std::isfinite(norm);
  report.grad_norm = finite ? norm : -1;
  if (!finite) report.first_bad_tensor = find_bad_tensor();
  const bool may_skip =
      config_.precision.compute != Precision::kBf16 || config_.precision.check_grad_overflow;
  if (finite || !may_skip) {
    optim::UpdateStep update;
    update.lr = lr_;
    update.beta1 = schedule_.beta1(adam_->steps()).value_or(adam_->options().beta1);
    update.beta2 = schedule_.beta2().value_or(adam_->options().beta2);
    update.grad_scale = static_cast<float>(optim::clip_factor(norm, config_.gradient_clipping));
    std::vector<optim::UpdateRange> ranges;
    for (const zero::ParameterGroup& group : state.layout().groups()) {
      if (group.trainable) ranges.push_back({group.range.begin, group.range.end, group.decays});
    }
    adam_->step(ctx, update, ranges, state.masters(), gradients, state.model());
    if (schedule_.active()) lr_ = schedule_.lr(adam_->steps());
    report.applied = true;
  } else {
    report.skip_reason = SkipReason::kNonFinite;
    ++progress_.skipped;
  }
  state.clear_gradients(ctx);
  model_->set_step_open(false);
  ++progress_.steps;
  report.progress = progress_;
  report.seconds = step_began_ ? now_seconds() - *step_began_ : 0;
  step_began_.reset();
  accumulated_ = 0;
  loss_sum_ = 0;
  step_tokens_ = 0;
  return report;
}

std::string Engine::find_bad_tensor() {
  const zero::ParameterState& state = model_->state();
  const nn::ParameterSet& parameters = model_->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (!parameters[id].trainable) continue;
    if (ops::first_non_finite(context(), state.gradient_view(id)) >= 0) return parameters[id].name;
  }
  return "(the sum of squares overflowed)";
}

void Engine::write_metrics(const StepReport& report) {
  const auto add = [](std::vector<Metric>& to, const char* tag, double value) {
    to.push_back({tag, value});
  };
  if (!monitors_->empty()) {
    std::vector<Metric> metrics;
    add(metrics, "Train/Samples/train_loss", report.loss);
    add(metrics, "Train/Samples/lr", report.lr);
    add(metrics, "Train/Samples/loss_scale", report.loss_scale);
    for (const char* phase : kPhases) {
      if (!timers_.has(phase)) continue;
      metrics.push_back(
          {str_cat("Train/Samples/elapsed_time_ms_", phase), timers_.elapsed(phase) * 1e3});
    }
    monitors_->write(report.progress.samples, metrics);
  }
  const bool print = config_.steps_per_print && *config_.steps_per_print > 0 &&
                     report.progress.steps % *config_.steps_per_print == 0;
  if (print) {
    log_info("engine", "step ", report.progress.steps, ", skipped ", report.progress.skipped,
             ", loss ", report.loss, ", lr ", report.lr, ", gradient norm ", report.grad_norm);
    if (config_.wall_clock_breakdown) log_info("engine", timers_.line());
    if (config_.memory_breakdown) log_info("engine", format_memory_report(*model_->device()));
  }
  timers_.reset();
}

}  // namespace ds
