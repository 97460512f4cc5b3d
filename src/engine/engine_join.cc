// Ranks with fewer batches: one that has no further one takes part in the steps of the others, with
// gradients of zero, because it owns a part of the weights and of the optimizer's state.
//
// It takes the steps before it knows whether anybody still trains; the totals that every step
// exchanges tell how many micro batches there were, and a step without any ends the joining.
#include "engine/engine.h"
#include "models/inputs.h"

namespace ds {

bool Engine::uneven(const RankTotals& totals) const {
  return totals.batches != accumulated_ * comm_->size();
}

void Engine::join() {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState,
           "a forward or backward is open; end the micro batch (ds_engine_step) before joining");
  check_nothing_held("joining");
  check_synced("joining");
  if (comm_->size() == 1) return;
  DS_CHECK(config_.managed_accumulation && !boundary_, Code::kState,
           "the caller sets the boundaries of steps: a rank that joins cannot know those of the "
           "others");
  const models::Model::Use use(*model_);
  DS_CHECK(model_->has_architecture() || !model_->state().gradients_leave_early() ||
               !last_own_uses_.empty(),
           Code::kState,
           "at ZeRO stage 3 a rank joins by repeating what its last micro batch fetched, and this "
           "one has had none; give it at least one, or use stage 2");
  joined_ = true;
  all_joined_ = false;
  try {
    while (!all_joined_) {
      run_empty_batch();
      finish_micro_batch();
    }
  } catch (...) {
    joined_ = all_joined_ = false;
    drop_open_step();
    throw;
  }
  joined_ = all_joined_ = false;
}

// The collectives of a micro batch, which do not depend on what the batch holds.
void Engine::run_empty_batch() {
  begin_step_clock();
  if (model_->has_architecture()) {
    MicroBatch batch;
    batch.ids = host_context().workspace(DType::kInt32, {1, 1});
    *batch.ids.data<int32_t>() = 0;
    batch.labels = models::blank_labels(host_context(), 1, 1, model_->architecture().info());
    run_forward(models::to_device(make_batch(batch), model_->device()),
                make_labels(batch.labels, batch.ids));
    run_backward();
    return;
  }
  zero::ParameterState& state = model_->state();
  if (!pass_open_) state.begin_pass();
  pass_open_ = true;
  for (const OwnUse& use : last_own_uses_) {
    switch (use.kind) {
      case OwnUse::Kind::kFetch:
        state.acquire_all(use.ids);
        break;
      case OwnUse::Kind::kRelease:
        for (const nn::ParamId id : use.ids) state.release(id);
        break;
      case OwnUse::Kind::kGradient:
        for (const nn::ParamId id : use.ids) state.gradient_complete(id);
        break;
    }
  }
}

// No rank had a micro batch in this step: it did not happen.
StepReport Engine::nothing_left() {
  all_joined_ = true;
  progress_.micro_steps -= accumulated_;
  progress_.samples -= step_samples_;
  drop_open_step();
  StepReport report;
  report.progress = progress_;
  return report;
}

}  // namespace ds
