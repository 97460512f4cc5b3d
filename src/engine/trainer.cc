#include "engine/trainer.h"

#include <limits>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "engine/agreement.h"
#include "engine/fp8_steps.h"
#include "engine/open_step.h"
#include "engine/parameter_scopes.h"
#include "engine/router_bias.h"
#include "engine/run_context.h"
#include "engine/step_guard.h"
#include "engine/step_observer.h"
#include "engine/step_totals.h"
#include "engine/updater.h"
#include "models/inputs.h"
#include "zero/weight_checks.h"

namespace ds {
namespace {

// Where state does not lie in memory an update may fail half way: what it has written so far is of
// the next step, and the rest of the last one.
Updater::Outcome update_state(RunContext& run, Updater& updater, const StepGuard& guard,
                              double share) {
  zero::TrainState& state = *run.state;
  try {
    Updater::Outcome outcome;
    end_group_on_io_error(run.world(),
                          [&] { outcome = updater.update(run.context(), state, share); });
    return outcome;
  } catch (const Error& error) {
    if (!state.half_written()) guard.fail_step(error);
    run.model->set_incomplete(str_cat("an update failed half way: ", error.message()));
    throw;
  }
}

}  // namespace

Trainer::Trainer(RunContext& run, OpenStep& open, StepObserver& observer, ParameterScopes& scopes,
                 Updater& updater, const StepGuard& guard)
    : run_(run),
      open_(open),
      observer_(observer),
      scopes_(scopes),
      updater_(updater),
      guard_(guard),
      passes_(std::make_unique<ModelPasses>(run, open, observer, updater)) {
  product_timing_.begin(run_.context(), run_.world());
  // As before every other step: gradients are written first, which is another form of product
  // than adding to the zeros that they begin with.
  if (product_timing_.in_first_step()) run_.state->gradients().clear(run_.context());
}

Tensor Trainer::forward(const MicroBatch& batch) {
  DS_CHECK(open_.phase != OpenStep::Phase::kForwardDone, Code::kState,
           "the last forward still waits for its backward");
  DS_CHECK(open_.phase != OpenStep::Phase::kBackwardDone ||
               !run_.config.managed_gradient_accumulation || open_.reduction_deferred,
           Code::kState, "the last backward still waits for step");
  scopes_.check_nothing_held("a forward");
  const models::Model::Use use(*run_.model);
  if (open_.phase == OpenStep::Phase::kBackwardDone) {
    close_micro_batch(/*reduce=*/!open_.reduction_deferred);
  }
  run_forward(make_batch(run_, batch), make_labels(run_, batch));
  return passes_->give_loss();
}

void Trainer::backward(const Tensor& loss) {
  DS_CHECK(open_.phase == OpenStep::Phase::kForwardDone, Code::kState,
           "backward needs a forward before it");
  DS_CHECK(passes_->gave(loss), Code::kInvalidArgument, "this is not the loss of the last forward");
  const models::Model::Use use(*run_.model);
  run_backward();
}

void Trainer::run_forward(models::Batch batch, const Tensor& labels) {
  updater_.undo_ahead();  // after a backward that was not the step's last
  const models::Batch inputs = models::to_device(std::move(batch), run_.model->device());
  end_group_on_io_error(run_.world(), [&] { passes_->forward(inputs, labels); });
}

void Trainer::run_backward() {
  try {
    if (last_backward_is_next()) updater_.update_ahead(*run_.state, run_.context());
    end_group_on_io_error(run_.world(), [&] { passes_->backward(); });
  } catch (...) {
    drop_open_step();
    throw;
  }
  open_.phase = OpenStep::Phase::kBackwardDone;
  scopes_.free_weights();
}

std::optional<StepReport> Trainer::run_micro_batch(const MicroBatch& samples) {
  run_passes(samples);
  if (!close_micro_batch()) return {};
  return finish_step();
}

void Trainer::run_passes(const MicroBatch& samples) {
  models::Batch batch = make_batch(run_, samples);
  const Tensor labels = make_labels(run_, samples);
  // Nothing can be timed while it is recorded.
  if (passes_->uses_graphs() && !product_timing_.in_first_step() && run_graph(batch, labels)) {
    return;
  }
  run_forward(std::move(batch), labels);
  run_backward();
}

// As far as is known: who sets boundaries may do so after it.
bool Trainer::last_backward_is_next() const {
  if (open_.mode.joined || open_.mode.no_sync) return false;
  if (!run_.config.managed_gradient_accumulation) return true;
  return open_.mode.boundary.value_or(open_.micro_batches + 1 >= run_.config.batch.accumulation);
}

bool Trainer::run_graph(const models::Batch& batch, const Tensor& labels) {
  open_.begin_clock();
  const ModelPasses::GraphInputs inputs = passes_->graph_inputs(batch, labels);
  try {
    bool launched = false;
    end_group_on_io_error(run_.world(), [&] { launched = passes_->run_graph(inputs); });
    if (!launched) return false;
  } catch (...) {
    drop_open_step();
    throw;
  }
  passes_->finish_graph(inputs);
  open_.phase = OpenStep::Phase::kBackwardDone;
  scopes_.free_weights();
  return true;
}

// A backward that failed has added an unknown part of its gradients: the whole open step goes.
void Trainer::drop_open_step() {
  observer_.metrics().drop_step();
  updater_.undo_ahead();
  passes_->drop();
  open_.give_up();
  scopes_.pass().drop_uses();
  follow_ramp_up(run_.config, open_);
  zero::TrainState& state = *run_.state;
  state.gradients().clear(run_.context());
  // What the caller has fetched stays, and with it the pass.
  if (!scopes_.fetched()) scopes_.pass().drop(state);
  drop_fp8_step(run_);
  scopes_.free_weights();
}

void Trainer::end_passes() { passes_.reset(); }

StepReport Trainer::step() {
  // Without a forward pass here, a step with no gradient at all is a step with zeros.
  DS_CHECK(open_.phase == OpenStep::Phase::kBackwardDone ||
               (open_.phase == OpenStep::Phase::kIdle && !run_.model->has_architecture()),
           Code::kState, "step needs a backward, or gradients of the caller, before it");
  const models::Model::Use use(*run_.model);
  scopes_.check_nothing_held("a step");
  open_.check_synced("a step");
  open_.begin_clock();
  return finish_micro_batch();
}

StepReport Trainer::finish_micro_batch() {
  if (close_micro_batch()) return finish_step();
  StepReport report;
  report.progress = open_.progress;
  report.skip_reason = SkipReason::kAccumulating;
  report.has_loss = open_.losses.count() > 0;
  report.loss = !report.has_loss ? std::numeric_limits<double>::quiet_NaN()
                                 : open_.losses.value() / static_cast<double>(open_.losses.count());
  report.lr = updater_.rates().empty() ? 0 : updater_.rates().front();
  report.loss_scale = updater_.loss_scale();
  report.tokens = open_.tokens;
  return report;
}

// True where the step has all its micro batches. Without `reduce`, gradients that stayed on this
// rank go on doing so.
bool Trainer::close_micro_batch(bool reduce) {
  open_.phase = OpenStep::Phase::kIdle;
  if (!run_.model->has_architecture()) {
    guard_.run([&] { run_.state->finish_external_micro_batch(run_.context()); });
    scopes_.pass().end_micro_batch(/*keep=*/!open_.mode.joined);
  } else if (reduce) {
    guard_.run([&] { run_.state->gradients().reduce_held(run_.context()); });
  }
  if (!std::exchange(open_.forward_counted, false)) {
    const int64_t samples = run_.config.batch.micro_batch;
    open_.count_samples(samples, run_.data_ranks(), open_.mode.joined ? 0 : samples);
  }
  if (const auto loss = std::exchange(open_.external_loss, {})) open_.losses.add(*loss);
  open_.own_micro_batches += open_.mode.joined ? 0 : 1;
  ++open_.progress.micro_steps;
  ++open_.micro_batches;
  if (!at_boundary()) updater_.undo_ahead();
  return at_boundary();
}

bool Trainer::at_boundary() const {
  if (!run_.config.managed_gradient_accumulation) return true;
  return open_.mode.boundary.value_or(open_.micro_batches >= run_.config.batch.accumulation);
}

void Trainer::set_boundary(std::optional<bool> boundary) {
  DS_CHECK(run_.config.managed_gradient_accumulation, Code::kState,
           "managed_gradient_accumulation is false: every step is a boundary");
  DS_CHECK(!boundary || !run_.config.batch_ramp_up, Code::kState,
           "rampup_batch_size sets the boundaries of steps; leave it out to set them yourself");
  open_.mode.boundary = boundary;
}

StepReport Trainer::finish_step() {
  StepReport report = apply_update();
  if (open_.mode.all_joined) return report;
  report.seconds = open_.seconds();  // all that the timers of the step have measured lies in it
  open_.clear_counters();
  observer_.finish_step(report);
  follow_ramp_up(run_.config, open_);
  const std::string reason = updater_.stop_reason();
  DS_CHECK(
      reason.empty(), Code::kState, "training cannot go on: ", reason,
      report.skip_reason == SkipReason::kLargeNorm
          ? str_cat("; the last one had a gradient norm of ", report.grad_norm,
                    ", above gradient_skip_norm")
          : str_cat("; the last gradient that was not finite belongs to ",
                    report.first_bad_tensor.empty() ? "an earlier step" : report.first_bad_tensor));
  return report;
}

// What is legal and yet seldom meant is logged once.
void Trainer::warn_of_uncounted_labels(const StepTotals& totals) {
  if (!run_.model->has_architecture() || totals.losses == 0 || totals.tokens > 0) return;
  if (std::exchange(warned_uncounted_, true)) return;
  log_warning("engine", "step ", open_.progress.steps + 1,
              ": no label of its micro batches is counted (all are -100): its loss and its "
              "gradients are 0");
}

// With ignore_unused_parameters false. A step without some gradient is given up.
void Trainer::check_all_have_gradients() {
  if (run_.config.zero.ignore_unused_parameters) return;
  try {
    agree(run_.context(), run_.world(), "looking for gradients", [&] {
      if (open_.mode.joined) return;  // this rank gives none
      const nn::ParamId id = run_.state->gradients().marks().first_not_given();
      DS_CHECK(id == nn::kNoParam, Code::kState, "the parameter ",
               run_.model->parameters()[id].name,
               " got no gradient in this step; freeze it, or let "
               "zero_optimization.ignore_unused_parameters be true");
    });
  } catch (...) {
    drop_open_step();
    throw;
  }
}

StepReport Trainer::apply_update() {
  const ScopedTimer timer = observer_.time("step");
  const OpContext ctx = run_.context();
  check_all_have_gradients();
  guard_.run([&] { run_.state->reduce(ctx); });
  const bool distils = run_.config.distillation.active(open_.progress.steps);
  StepTotals totals = exchange_totals(run_.model->host(), run_.mesh.placed(MeshGroup::kDataContext),
                                      open_, distils);
  if (totals.batches == 0) return end_joining();
  observer_.metrics().sum_experts(run_.mesh);
  // The mean over the micro batches that there were.
  const double all = static_cast<double>(open_.micro_batches) * run_.gradient_ranks();
  const double share =
      uneven(totals, open_, run_.gradient_ranks()) ? all / static_cast<double>(totals.batches) : 1;
  finish_fp8_step(run_);
  const bool averages = run_.state->gradients().op() == ReduceOp::kAverage;
  const Updater::Outcome outcome = update_state(run_, updater_, guard_, averages ? share : 1);
  observer_.metrics().set_extent(outcome.extent);
  observer_.metrics().set_ahead(outcome.ahead);
  if (outcome.applied) {
    end_group_on_io_error(run_.world(),
                          [&] { move_router_biases(run_, observer_.metrics().expert_loads()); });
  }
  if (run_.config.zero.enable_sanity_checks && outcome.applied) {
    agree(ctx, run_.world(), "checking the weights", [&] {
      const zero::TrainState& state = *run_.state;
      zero::check_weights(ctx, state.arrays(), state.weights());
    });
  }
  if (!outcome.applied) run_.state->gradients().drop_rounding_errors();
  product_timing_.finish_step(run_.world());
  if (run_.mesh.size() == 1) {  // there when the update is
    totals.loss_sum = open_.losses.value();
    totals.label_sum = open_.label_losses.value();
    totals.teacher_sum = open_.teacher_losses.value();
  }
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
  const auto mean = [&](double sum) {
    return mean_loss(sum, totals, open_, run_.gradient_ranks(), share);
  };
  report.loss = mean(totals.loss_sum);
  if (distils) {
    report.label_loss = mean(totals.label_sum);
    report.teacher_loss = mean(totals.teacher_sum);
  }
  report.tokens = totals.tokens;
  if (!outcome.applied) {
    // A norm that is not finite is reported as -1.
    report.skip_reason = outcome.grad_norm < 0 ? SkipReason::kNonFinite : SkipReason::kLargeNorm;
  }
  complete(report, totals);
  return report;
}

// The counters go on to the next step.
void Trainer::complete(StepReport& report, const StepTotals& totals) {
  open_.progress.tokens += totals.tokens - open_.tokens;
  // What a rank counts itself takes the other ranks' micro batches for as large as its own.
  if (uneven(totals, open_, run_.gradient_ranks()) || run_.config.batch_ramp_up) {
    open_.progress.samples += totals.samples - open_.samples;
  }
  if (!report.applied) ++open_.progress.skipped;
  run_.state->gradients().clear(run_.context());
  run_.model->set_step_open(false);
  ++open_.progress.steps;
  report.progress = open_.progress;
}

void Trainer::join() {
  DS_CHECK(open_.phase == OpenStep::Phase::kIdle, Code::kState,
           "a forward or backward is open; end the micro batch (ds_engine_step) before joining");
  scopes_.check_nothing_held("joining");
  open_.check_synced("joining");
  if (run_.mesh.size() == 1) return;
  DS_CHECK(run_.config.managed_gradient_accumulation && !open_.mode.boundary, Code::kState,
           "the caller sets the boundaries of steps: a rank that joins cannot know those of the "
           "others");
  const models::Model::Use use(*run_.model);
  DS_CHECK(run_.model->has_architecture() || !run_.state->gradients().leave_early() ||
               scopes_.pass().can_repeat(),
           Code::kState,
           "at ZeRO stage 3 a rank joins by repeating what its last micro batch fetched, and this "
           "one has had none; give it at least one, or use stage 2");
  open_.mode.joined = true;
  open_.mode.all_joined = false;
  try {
    while (!open_.mode.all_joined) {
      run_empty_batch();
      finish_micro_batch();
    }
  } catch (...) {
    open_.mode.joined = open_.mode.all_joined = false;
    drop_open_step();
    throw;
  }
  open_.mode.joined = open_.mode.all_joined = false;
}

// The collectives of a micro batch, which do not depend on what the batch holds.
void Trainer::run_empty_batch() {
  open_.begin_clock();
  if (!run_.model->has_architecture()) return scopes_.pass().repeat(*run_.state);
  const OpContext host = run_.host_context();
  MicroBatch batch;
  batch.ids = host.workspace(DType::kInt32, {1, 1});
  *batch.ids.data<int32_t>() = 0;
  batch.labels = models::blank_labels(host, 1, 1, run_.model->architecture().info());
  passes_->forward(models::to_device(make_batch(run_, batch), run_.model->device()),
                   make_labels(run_, batch));
  run_backward();
}

// No rank had a micro batch in this step: it did not happen.
StepReport Trainer::end_joining() {
  open_.mode.all_joined = true;
  drop_open_step();
  StepReport report;
  report.progress = open_.progress;
  return report;
}

}  // namespace ds
