#include "engine/engine.h"

#include <chrono>
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/background_save.h"
#include "checkpoint/run_id.h"
#include "config/auto_values.h"
#include "engine/agreement.h"
#include "engine/lone_process.h"
#include "engine/monitors.h"
#include "engine/rank_devices.h"
#include "engine/recompute.h"
#include "engine/share_options.h"
#include "models/inputs.h"
#include "nn/loss.h"
#include "ops/elementwise.h"

namespace ds {

// What lives between forward and backward.
struct Engine::Pending {
  Pending(const OpContext& ctx, zero::ParameterState& state, const nn::TapeOptions& options)
      : tape(ctx, state, &state, options) {}
  nn::Tape tape;
  std::shared_ptr<nn::GradientSlot> loss_gradient;
  Tensor loss;  // fp32 [] on the host, where the caller has it
};

namespace {

ConfigEnvironment environment_of(const models::Model& model, const Communicator* comm) {
  ConfigEnvironment environment;
  environment.on_gpu = model.device()->kind() != DeviceKind::kCpu;
  if (model.has_architecture()) {
    environment.hidden_size = hidden_size_of(model.architecture().config());
  }
  environment.data_parallel_size = comm == nullptr ? 1 : comm->size();
  return environment;
}

kernels::GpuPolicy policy_of(const CudaConfig& config) {
  using kernels::AttentionChoice;
  const AttentionChoice attention =
      config.attention == CudaConfig::Attention::kOwn     ? AttentionChoice::kOwn
      : config.attention == CudaConfig::Attention::kCudnn ? AttentionChoice::kCudnn
                                                          : AttentionChoice::kAuto;
  return {attention, config.strict_determinism, config.time_products, config.tf32};
}

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// What a model of the caller's own parameters is computed with.
struct OwnTypes {
  DType compute = DType::kFloat32;
  std::vector<bool> fp32;  // by parameter: float32 where `compute` is not
};

// Each in the type that it was registered with; lent memory has its own. A copy in the lower type
// is only worth having when somebody looks at it.
OwnTypes own_types(const nn::ParameterSet& parameters, const zero::ParameterState& state,
                   DType configured, bool rounded) {
  OwnTypes out;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const DType type = parameters[id].dtype;
    out.fp32.push_back(type == DType::kFloat32);
    // Rounded masters are of the lent memory's type, too, where that is the configuration's.
    const bool lent = state.lent(id) && !(rounded && type == configured);
    if (type == DType::kFloat32 || lent) continue;
    DS_CHECK(type == configured, Code::kConfig, "parameter ", printable(parameters[id].name),
             " is ", dtype_name(type), " and not lent, and the configuration computes in ",
             dtype_name(configured), "; enable that precision, or lend the memory");
    out.compute = configured;
  }
  if (out.compute == DType::kFloat32) out.fp32.clear();
  return out;
}

}  // namespace

Engine::Engine(std::string_view config_json, std::shared_ptr<models::Model> model,
               std::shared_ptr<Communicator> comm, const ReadOptions& reading)
    : config_(load_config(config_json, environment_of(*model, comm.get()), reading)),
      model_(std::move(model)),
      comm_(comm ? std::move(comm) : make_lone_communicator()),
      pool_(config_.threads, config_.thread_affinity),
      gpu_policy_(policy_of(config_.cuda)),
      timers_(device_clock(model_->device())) {
  for (const std::string& warning : config_.warnings()) log_warning("config", warning);
  run_id_ = make_run_id();
  log_collectives();
  monitors_ = make_monitors(config_, *comm_);
  metrics_ = std::make_unique<StepMetrics>(config_, *model_, *comm_);
  const models::Model::Use use(*model_);
  model_->attach_engine();
  try {
    DS_CHECK(comm_->size() == 1 || model_->has_architecture() ||
                 model_->device()->kind() == DeviceKind::kCpu,
             Code::kUnsupported, "the model is the caller's own parameters on ",
             model_->device()->describe(),
             ": several ranks train those on the CPU (ds_model_set_device)");
    check_rank_devices(*model_->device(), *comm_);
    model_->host()->use_threads(pool_.threads());
    // Of several ranks each makes what it holds; one makes everything, offloaded where it stays.
    const bool offload = offloads_optimizer();
    zero::ParameterState& state =
        comm_->size() > 1 || offload ? model_->state_as_it_is() : model_->state();
    OwnTypes types{compute_type(), {}};
    if (!model_->has_architecture()) {
      types =
          own_types(model_->parameters(), state, types.compute, config_.precision.rounded_masters);
    }
    const DType compute = types.compute;
    const zero::Masters masters = masters_of(
        compute, std::find(types.fp32.begin(), types.fp32.end(), true) != types.fp32.end());
    if (comm_->size() > 1) {
      zero::ShareOptions options = share_options();
      options.fp32 = types.fp32;
      state.share(context(), options, compute, masters);
    } else if (offload) {
      state.offload(context(), offload_options(config_, model_->host()), compute,
                    masters == zero::Masters::kSplit);
    } else {
      state.set_compute_type(context(), compute, masters, types.fp32);
    }
    if (config_.precision.fp8.enabled) state.set_fp8(make_fp8());
    state.allocate_gradients(context(), dtype_of(config_.precision.accumulate));
    if (!config_.zero.ignore_unused) state.track_gradients();
    // The caller's gradients are added, and no backward overwrites.
    if (!model_->has_architecture() && !state.gradients_leave_early()) {
      state.clear_gradients_at_once(context());
    }
    updater_ = std::make_unique<Updater>(config_, state);
    if (const std::string decay = updater_->describe_decay(); comm_->rank() == 0 && !decay.empty())
      log_info("optimizer", decay);
    const ActivationCheckpointingConfig& segments = config_.activation_checkpointing;
    if (model_->has_architecture()) recompute_of(segments, model_->architecture().info());
    if (segments.enabled && segments.offload && model_->device()->kind() == DeviceKind::kCuda) {
      offload_stream_ = model_->device()->create_stream();
    }
    graphs_ = make_graphs();
    product_timing_.begin(context(), *comm_);
    // As before every other step: gradients are written first, which is another form of product
    // than adding to the zeros that they begin with.
    if (product_timing_.in_first_step()) state.clear_gradients(context());
    if (config_.background_save) {
      background_ = std::make_unique<BackgroundSave>(&model_->host()->account());
    }
    follow_ramp_up();
    if (config_.dump_state) log_info("engine", dump_json(config_document()));
  } catch (...) {
    release_model();
    throw;
  }
}

Engine::~Engine() {
  pending_.reset();
  graphs_.reset();
  let_go();
  release_model();
  if (!comms_logger_) return;
  comm_->set_logger(nullptr);
  if (comm_->rank() == 0) log_info("comms", comms_logger_->table());
}

// Joining split masters needs memory; without it the model keeps them, and is free all the same.
void Engine::release_model() noexcept {
  try {
    zero::ParameterState& state = model_->state_as_it_is();
    state.free_gradients();
    state.set_fp8(nullptr);
    if (state.shared()) {
      state.unshare(context());
    } else if (state.home()) {
      state.end_offload(context());
    } else {
      state.set_compute_type(context(), DType::kFloat32);
    }
  } catch (const std::exception& error) {
    log_warning("engine", error.what());
  }
  model_->synchronize_stream();
  model_->detach_engine();
}

zero::Masters Engine::masters_of(DType compute, bool two_types) const {
  if (compute == DType::kFloat32) return zero::Masters::kFp32;
  if (!config_.precision.rounded_masters) {
    return config_.precision.split_master ? zero::Masters::kSplit : zero::Masters::kFp32;
  }
  const std::string key = compute == DType::kBFloat16 ? "bf16.bf16_master_weights_and_grads"
                                                      : "fp16.fp16_master_weights_and_grads";
  DS_CHECK(model_->device()->kind() == DeviceKind::kCpu, Code::kUnsupported, key,
           ": on a GPU masters are fp32 or split so far; use false, or bf16.split_master, "
           "which needs 4 bytes for a weight and its master together");
  DS_CHECK(!two_types, Code::kUnsupported, key, ": some of the caller's own parameters are ",
           dtype_name(DType::kFloat32), " and some ", dtype_name(compute),
           ", which have fp32 masters beside them; register all as ", dtype_name(compute),
           ", or use false");
  return zero::Masters::kWeights;
}

// On the CPU everything lies in the host's memory already.
bool Engine::offloads_optimizer() const {
  if (!config_.zero.offload_optimizer || model_->device()->kind() == DeviceKind::kCpu) return false;
  DS_CHECK(model_->has_architecture(), Code::kUnsupported,
           "zero_optimization.offload_optimizer: parameters of the caller's own that lie on a GPU "
           "keep their state there; leave it out, or keep them on the CPU");
  DS_CHECK(comm_->size() == 1, Code::kUnsupported,
           "zero_optimization.offload_optimizer: of several ranks with a GPU each none can offload "
           "yet; leave it out, or train on one GPU");
  return true;
}

DType Engine::compute_type() const { return dtype_of(config_.precision.compute); }

// With sparse_gradients.
void Engine::choose_sparse(zero::ShareOptions& options) const {
  if (!config_.zero.sparse || config_.zero.stage > 1) return;
  const bool own = !model_->has_architecture();
  const nn::ParamId table = own ? nn::kNoParam : model_->architecture().info().lookup;
  if (table == nn::kNoParam || model_->device()->kind() != DeviceKind::kCpu) {
    if (comm_->rank() != 0) return;
    const char* const why =
        own ? "the parameters are the caller's own, whose gradients travel whole"
        : table == nn::kNoParam ? "the token embedding is tied to the output, whose gradient has "
                                  "all rows"
                                : "the model is on a GPU";
    log_warning("engine", "sparse_gradients has no effect: ", why);
    return;
  }
  options.sparse.assign(static_cast<size_t>(model_->parameters().size()), false);
  options.sparse[static_cast<size_t>(table)] = true;
}

zero::ShareOptions Engine::share_options() {
  zero::ShareOptions options = ds::share_options(config_);
  options.comm = comm_;
  options.together = [this](const std::function<void()>& body) {
    agree(context(), *comm_, "making the weights", body);
  };
  choose_sparse(options);
  if (model_->has_architecture()) return options;
  options.own_gradients = options.stage < 3;
  options.by_micro_batch = config_.batch.accumulation > 1;
  options.given_gradients = options.stage == 3;
  for (nn::ParamId id = 0; options.stage == 3 && id < model_->parameters().size(); ++id) {
    DS_CHECK(!model_->state_as_it_is().lent(id), Code::kUnsupported, "parameter ",
             printable(model_->parameters()[id].name),
             " is lent, and at zero_optimization.stage 3 no process has whole weights to write "
             "there: register it without `lend` (its value is copied) and open a scope where "
             "it is used (ds_engine_open_scope), or use stage 2");
  }
  return options;
}

// Groups are the caller's: the engine logs what happens while it lives.
void Engine::log_collectives() {
  const CommsLoggerConfig& wanted = config_.comms_logger;
  if (!wanted.enabled) return;
  std::vector<std::string> known;
  for (int i = 0; i < kCollectives; ++i) {
    known.emplace_back(collective_name(static_cast<Collective>(i)));
  }
  for (const std::string& name : wanted.operations) {
    DS_CHECK(std::find(known.begin(), known.end(), name) != known.end(), Code::kConfig,
             "configuration: /comms_logger/prof_ops: \"", printable(name),
             "\" is no collective; known are ", ds::join(known, ", "));
  }
  comms_logger_ = std::make_shared<CommsLogger>(
      CommsLoggerOptions{wanted.verbose, wanted.all, wanted.operations});
  comm_->set_logger(comms_logger_);
}

// On the host.
models::Batch Engine::make_batch(const MicroBatch& inputs) {
  const models::ArchitectureInfo& info = model_->architecture().info();
  const OpContext ctx = host_context();
  models::Batch batch;
  batch.ids = models::token_ids(ctx, inputs.ids, "token ids", info.vocab_size);
  DS_CHECK(inputs.ids.size(1) <= info.max_positions, Code::kInvalidArgument, "sequences of ",
           inputs.ids.size(1), " tokens are longer than the model's ", info.max_positions,
           " positions");
  batch.key_mask = models::key_mask(ctx, inputs.mask, inputs.ids);
  if (inputs.segments) {
    batch.segments = models::segment_ids(ctx, inputs.segments, inputs.ids);
    batch.position_ids = models::segment_positions(ctx, batch.segments);
  } else {
    batch.position_ids = models::position_ids(ctx, inputs.ids.size(0), inputs.ids.size(1), 0);
  }
  if (inputs.token_types) {
    DS_CHECK(info.token_types > 0, Code::kInvalidArgument,
             "this model family has no token types; leave them out");
    batch.token_types =
        models::matching_ids(ctx, inputs.token_types, inputs.ids, "token types", info.token_types);
  }
  return batch;
}

// On the host, where the loss counts them.
Tensor Engine::make_labels(const Tensor& labels, const Tensor& ids) {
  return models::loss_labels(host_context(), labels, ids, model_->architecture().info());
}

Tensor Engine::forward(const MicroBatch& batch) {
  DS_CHECK(phase_ != Phase::kForwardDone, Code::kState,
           "the last forward still waits for its backward");
  DS_CHECK(phase_ != Phase::kBackwardDone || !config_.managed_accumulation || unreduced_,
           Code::kState, "the last backward still waits for step");
  check_nothing_held("a forward");
  const models::Model::Use use(*model_);
  if (phase_ == Phase::kBackwardDone) close_micro_batch(/*reduce=*/!unreduced_);
  const models::Batch inputs = models::to_device(make_batch(batch), model_->device());
  run_forward(inputs, make_labels(batch.labels, batch.ids));
  pending_->loss = host_context().workspace(DType::kFloat32, {});
  *pending_->loss.data<float>() = losses_.newest();
  return pending_->loss;
}

void Engine::begin_step_clock() {
  if (!step_began_) step_began_ = now_seconds();
}

// Does not wait for a GPU.
void Engine::run_forward(const models::Batch& batch, const Tensor& labels) {
  begin_step_clock();
  const ScopedTimer timer = time_phase("forward");
  auto pending = std::make_unique<Pending>(context(), model_->state(), tape_options(batch));
  const nn::Labels placed = nn::place_labels(labels, model_->device());
  const auto run = [&] {
    try {
      return forward_pass(pending->tape, batch, placed);
    } catch (...) {
      pending.reset();
      model_->state().drop_pass();
      throw;
    }
  };
  nn::SummedLoss loss = run();
  pending->loss_gradient = std::move(loss.slot);
  pending_ = std::move(pending);
  phase_ = Phase::kForwardDone;
  model_->set_step_open(true);
  if (!joined_) count_batch(batch.ids, {loss.sum, placed.counted}, placed.counted);
}

// Random numbers follow the sample's place in the step, however ranks and micro batches share it.
uint32_t Engine::first_sample(const models::Batch& batch) const {
  return static_cast<uint32_t>(step_first_sample_ + comm_->rank() * batch.ids.size(0));
}

nn::TapeOptions Engine::tape_options(const models::Batch& batch) {
  nn::TapeOptions options;
  options.seed = config_.seed;
  options.step = static_cast<uint32_t>(progress_.steps);
  options.first_sample = first_sample(batch);
  options.loss_gradient = loss_gradient();
  options.profile = metrics_->profile_for(progress_.steps);
  options.offload = offload_stream_.get();
  return options;
}

nn::SummedLoss Engine::forward_pass(nn::Tape& tape, const models::Batch& batch,
                                    const nn::Labels& labels) {
  model_->state().set_loss_scale(updater_->loss_scale());
  model_->state().begin_pass();
  models::ForwardOptions forward_options;
  forward_options.padded_logits = true;
  const models::ArchitectureInfo& info = model_->architecture().info();
  forward_options.recompute = recompute_of(config_.activation_checkpointing, info);
  const nn::Value logits = model_->architecture().logits(tape, batch, forward_options);
  return nn::summed_loss(tape, logits, labels, info.outputs(), info.loss);
}

void Engine::count_batch(const Tensor& ids, nn::MeanLoss loss, int64_t counted) {
  forward_counted_ = true;
  warn_of_other_size(ids.size(0));
  metrics_->count_batch(ids);
  losses_.add(std::move(loss));
  step_tokens_ += counted;
  progress_.tokens += counted;
  progress_.samples += ids.size(0) * comm_->size();
  step_samples_ += ids.size(0) * comm_->size();
  step_first_sample_ += ids.size(0) * comm_->size();
  own_samples_ += ids.size(0);
}

float Engine::loss_gradient() const {
  if (joined_) return 0;
  if (!config_.managed_accumulation) return static_cast<float>(updater_->loss_scale());
  return static_cast<float>(updater_->loss_scale() /
                            static_cast<double>(config_.batch.accumulation));
}

void Engine::backward(const Tensor& loss) {
  DS_CHECK(phase_ == Phase::kForwardDone, Code::kState, "backward needs a forward before it");
  DS_CHECK(loss && loss.storage() == pending_->loss.storage(), Code::kInvalidArgument,
           "this is not the loss of the last forward");
  const models::Model::Use use(*model_);
  run_backward();
}

void Engine::run_backward() {
  const ScopedTimer timer = time_phase("backward");
  if (no_sync_) model_->state().hold_backward();
  unreduced_ = no_sync_;
  try {
    backward_pass(pending_->tape, *pending_->loss_gradient);
  } catch (...) {
    drop_open_step();
    throw;
  }
  pending_.reset();
  phase_ = Phase::kBackwardDone;
  weights_are_free();
}

// From here to the next forward nothing looks at weights but the update, which takes them as they
// are then.
void Engine::weights_are_free() {
  model_->set_step_open(fetched_count_ > 0 || gathered_count_ > 0);
}

void Engine::backward_pass(nn::Tape& tape, nn::GradientSlot& slot) {
  Tensor upstream = host_context().workspace(DType::kFloat32, {});
  *upstream.data<float>() = loss_gradient();
  slot.add(context(), upstream, true);
  const ScopedTimer inner = time_phase("backward_inner");
  tape.backward();
  model_->state().finish_backward();
}

// A backward that failed has added an unknown part of its gradients: the whole open step is given
// up, so that the weights stay as after the last update.
void Engine::drop_open_step() {
  metrics_->drop_step();
  pending_.reset();
  phase_ = Phase::kIdle;
  forward_counted_ = false;
  given_loss_.reset();
  accumulated_ = 0;
  losses_.reset();
  step_tokens_ = step_batches_ = step_samples_ = step_first_sample_ = own_samples_ = 0;
  step_began_.reset();
  own_uses_.clear();
  unreduced_ = false;
  follow_ramp_up();
  model_->state().clear_gradients(context());
  // What the caller has fetched stays, and with it the pass.
  if (fetched_count_ == 0) {
    model_->state().drop_pass();
    pass_open_ = false;
  }
  if (nn::Fp8Linears* const fp8 = model_->state().fp8()) fp8->drop_step(context());
  weights_are_free();
}

StepReport Engine::step() {
  // Without a forward pass here, a step with no gradient at all is a step with zeros.
  DS_CHECK(
      phase_ == Phase::kBackwardDone || (phase_ == Phase::kIdle && !model_->has_architecture()),
      Code::kState, "step needs a backward, or gradients of the caller, before it");
  const models::Model::Use use(*model_);
  check_nothing_held("a step");
  check_synced("a step");
  begin_step_clock();
  return finish_micro_batch();
}

StepReport Engine::finish_micro_batch() {
  if (close_micro_batch()) return finish_step();
  StepReport report;
  report.progress = progress_;
  report.skip_reason = SkipReason::kAccumulating;
  report.has_loss = losses_.count() > 0;
  report.loss = !report.has_loss ? std::numeric_limits<double>::quiet_NaN()
                                 : losses_.value() / static_cast<double>(losses_.count());
  report.lr = updater_->rates().empty() ? 0 : updater_->rates().front();
  report.loss_scale = updater_->loss_scale();
  report.tokens = step_tokens_;
  return report;
}

// True where the step has all its micro batches. Without `reduce`, gradients that stayed on this
// rank go on doing so.
bool Engine::close_micro_batch(bool reduce) {
  phase_ = Phase::kIdle;
  if (!model_->has_architecture()) {
    model_->state().finish_own_micro_batch(context());
    pass_open_ = false;
    if (!joined_) last_own_uses_ = std::exchange(own_uses_, {});
  } else if (reduce) {
    model_->state().reduce_held_gradients(context());
  }
  if (!std::exchange(forward_counted_, false)) {
    progress_.samples += config_.batch.micro_batch * comm_->size();
    step_samples_ += config_.batch.micro_batch * comm_->size();
    step_first_sample_ += config_.batch.micro_batch * comm_->size();
    own_samples_ += joined_ ? 0 : config_.batch.micro_batch;
  }
  if (const auto given = std::exchange(given_loss_, {})) losses_.add(*given);
  step_batches_ += joined_ ? 0 : 1;
  ++progress_.micro_steps;
  ++accumulated_;
  return at_boundary();
}

// Of several steps each has as many micro batches as the samples before it say.
void Engine::follow_ramp_up() {
  if (!config_.batch_ramp_up) return;
  config_.batch.set_train_batch(
      config_.batch_ramp_up->size_after(progress_.samples - step_first_sample_));
}

bool Engine::at_boundary() const {
  if (!config_.managed_accumulation) return true;
  return boundary_.value_or(accumulated_ >= config_.batch.accumulation);
}

void Engine::begin_no_sync() {
  DS_CHECK(config_.zero.stage < 2, Code::kUnsupported, "no_sync at zero_optimization.stage ",
           config_.zero.stage,
           ": every backward gives each rank its part of the gradients, so none can stay whole "
           "here; use stage 0 or 1");
  DS_CHECK(!no_sync_, Code::kState, "a no_sync scope is open already; they do not nest");
  DS_CHECK(phase_ != Phase::kForwardDone, Code::kState,
           "a forward waits for its backward; no_sync begins before both");
  const models::Model::Use use(*model_);
  if (model_->has_architecture()) model_->state().hold_own_gradients();
  no_sync_ = true;
}

void Engine::end_no_sync() { no_sync_ = false; }

void Engine::check_synced(const char* what) const {
  DS_CHECK(!no_sync_, Code::kState, what,
           " inside a no_sync scope, whose gradients are not reduced; end the scope first "
           "(ds_scope_close)");
}

void Engine::set_boundary(std::optional<bool> boundary) {
  DS_CHECK(config_.managed_accumulation, Code::kState,
           "managed_gradient_accumulation is false: every step is a boundary");
  DS_CHECK(!boundary || !config_.batch_ramp_up, Code::kState,
           "rampup_batch_size sets the boundaries of steps; leave it out to set them yourself");
  boundary_ = boundary;
}

StepReport Engine::finish_step() {
  StepReport report = apply_update();
  if (all_joined_) return report;
  const auto elapsed = [this](const char* phase) {
    return timers_.has(phase) ? timers_.elapsed(phase) : 0;
  };
  report.forward_seconds = elapsed("forward");
  report.backward_seconds = elapsed("backward");
  report.update_seconds = elapsed("step");
  write_metrics(report);
  follow_ramp_up();
  const std::string trouble = updater_->trouble();
  DS_CHECK(
      trouble.empty(), Code::kState, "training cannot go on: ", trouble,
      report.skip_reason == SkipReason::kLargeNorm
          ? str_cat("; the last one had a gradient norm of ", report.grad_norm,
                    ", above gradient_skip_norm")
          : str_cat("; the last gradient that was not finite belongs to ",
                    report.first_bad_tensor.empty() ? "an earlier step" : report.first_bad_tensor));
  return report;
}

// The mean loss of the ranks, and the tokens of all of them. The loss of a rank alone may not have
// come yet.
Engine::RankTotals Engine::rank_totals() {
  if (comm_->size() == 1) {
    return {0, losses_.count(), step_tokens_, step_batches_, own_samples_};
  }
  const Tensor totals = host_context().workspace(DType::kFloat64, {5});
  double* const sum = totals.data<double>();
  sum[0] = losses_.value();
  sum[1] = static_cast<double>(step_tokens_);
  sum[2] = static_cast<double>(step_batches_);
  sum[3] = static_cast<double>(own_samples_);
  sum[4] = static_cast<double>(losses_.count());
  comm_->all_reduce(totals, ReduceOp::kSum, {.label = "loss", .blocking = true})->wait();
  return {sum[0] / comm_->size(), static_cast<int64_t>(sum[4]), static_cast<int64_t>(sum[1]),
          static_cast<int64_t>(sum[2]), static_cast<int64_t>(sum[3])};
}

// Over the micro batches that had a loss: a program with gradients of its own may give none.
double Engine::mean_loss(const RankTotals& totals, double share) const {
  if (totals.losses == 0) return std::numeric_limits<double>::quiet_NaN();
  if (totals.losses == totals.batches) {
    return totals.loss_sum / static_cast<double>(accumulated_) * share;
  }
  return totals.loss_sum * comm_->size() / static_cast<double>(totals.losses);
}

// What is legal and yet seldom meant is logged once.
void Engine::warn_of_uncounted_labels(const RankTotals& totals) {
  if (!model_->has_architecture() || totals.losses == 0 || totals.tokens > 0) return;
  if (std::exchange(warned_uncounted_, true)) return;
  log_warning("engine", "step ", progress_.steps + 1,
              ": no label of its micro batches is counted (all are -100): its loss and its "
              "gradients are 0");
}

void Engine::warn_of_other_size(int64_t samples) {
  if (samples == config_.batch.micro_batch || std::exchange(warned_sizes_, true)) return;
  log_warning("engine", "a micro batch of ", samples,
              " samples, where the configuration's train_micro_batch_size_per_gpu is ",
              config_.batch.micro_batch,
              "; every micro batch weighs the same in a step, whatever its size");
}

// With ignore_unused_parameters false. A step without some gradient is given up.
void Engine::check_gradients_given() {
  if (config_.zero.ignore_unused) return;
  try {
    agree(context(), *comm_, "looking for gradients", [&] {
      if (joined_) return;  // this rank gives none
      const nn::ParamId id = model_->state().first_without_gradient();
      DS_CHECK(id == nn::kNoParam, Code::kState, "the parameter ", model_->parameters()[id].name,
               " got no gradient in this step; freeze it, or let "
               "zero_optimization.ignore_unused_parameters be true");
    });
  } catch (...) {
    drop_open_step();
    throw;
  }
}

StepReport Engine::apply_update() {
  const ScopedTimer timer = time_phase("step");
  const OpContext ctx = context();
  check_gradients_given();
  model_->state().materialize_gradients(ctx);
  model_->state().reduce_own_gradients();
  model_->state().reduce_replicas();
  RankTotals totals = rank_totals();
  if (totals.batches == 0) return nothing_left();
  // The mean over the micro batches that there were.
  const double all = static_cast<double>(accumulated_) * comm_->size();
  const double share = uneven(totals) ? all / static_cast<double>(totals.batches) : 1;
  finish_fp8_step();
  const bool mean = model_->state().gradient_op() == ReduceOp::kAverage;
  const Updater::Outcome outcome = updater_->update(ctx, model_->state(), mean ? share : 1);
  if (config_.zero.sanity_checks && outcome.applied) {
    agree(ctx, *comm_, "checking the weights", [&] { model_->state().check_weights(ctx); });
  }
  if (!outcome.applied) model_->state().drop_rounding_errors();
  product_timing_.finish_step(*comm_);
  if (comm_->size() == 1) totals.loss_sum = losses_.value();  // there when the update is
  warn_of_uncounted_labels(totals);

  StepReport report;
  report.applied = outcome.applied;
  report.grad_norm = outcome.grad_norm;
  report.lr = outcome.lr;
  report.loss_scale = outcome.loss_scale;
  report.first_bad_tensor = outcome.first_bad_tensor;
  report.first_bad_element = outcome.first_bad_element;
  report.first_bad_value = outcome.first_bad_value;
  report.has_loss = totals.losses > 0;
  report.loss = mean_loss(totals, share);
  report.tokens = totals.tokens;
  progress_.tokens += totals.tokens - step_tokens_;
  // What a rank counts itself takes the other ranks' micro batches for as large as its own.
  if (uneven(totals) || config_.batch_ramp_up) progress_.samples += totals.samples - step_samples_;
  if (!outcome.applied) {
    // A norm that is not finite is reported as -1.
    report.skip_reason = outcome.grad_norm < 0 ? SkipReason::kNonFinite : SkipReason::kLargeNorm;
    ++progress_.skipped;
  }
  model_->state().clear_gradients(ctx);
  model_->set_step_open(false);
  ++progress_.steps;
  report.progress = progress_;
  report.seconds = step_began_ ? now_seconds() - *step_began_ : 0;
  step_began_.reset();
  accumulated_ = 0;
  losses_.reset();
  step_tokens_ = step_batches_ = step_samples_ = step_first_sample_ = own_samples_ = 0;
  return report;
}

}  // namespace ds
