#include "engine/engine.h"

#include "base/log.h"
#include "engine/agreement.h"
#include "engine/caller_state.h"
#include "engine/checkpoint_loader.h"
#include "engine/checkpoint_saver.h"
#include "engine/combinations.h"
#include "engine/comms_log.h"
#include "engine/data_feed.h"
#include "engine/dataset_batches.h"
#include "engine/engine_documents.h"
#include "engine/evaluation.h"
#include "engine/expert_parallel.h"
#include "engine/external_gradients.h"
#include "engine/memory_check.h"
#include "engine/open_step.h"
#include "engine/parameter_scopes.h"
#include "engine/parameter_values.h"
#include "engine/rank_devices.h"
#include "engine/run_context.h"
#include "engine/state_setup.h"
#include "engine/step_guard.h"
#include "engine/step_observer.h"
#include "engine/trainer.h"
#include "engine/updater.h"

namespace ds {
namespace {

void find_teacher(RunContext& run) {
  if (!run.config.distillation.enabled) return;
  agree(run.context(), run.world(), "opening the teacher", [&] {
    run.teacher =
        std::make_unique<Teacher>(open_teacher(run.config, run.model->architecture().info()));
  });
}

void hold_teacher(RunContext& run) {
  if (!run.teacher) return;
  agree(run.context(), run.world(), "reading the teacher's weights",
        [&] { run.teacher->hold(run.context()); });
}

}  // namespace

Engine::Engine(std::string_view config_json, std::shared_ptr<models::Model> model,
               std::shared_ptr<Communicator> comm, const ReadOptions& reading,
               std::shared_ptr<optim::ArrayFactory> arrays)
    : run_(std::make_unique<RunContext>(config_json, std::move(model), std::move(comm), reading)),
      open_(std::make_unique<OpenStep>()),
      caller_(std::make_unique<CallerState>()) {
  run_->arrays = std::move(arrays);
  for (const std::string& warning : run_->config.warnings()) log_warning("config", warning);
  // Groups are the caller's: the engine logs what happens while it lives.
  comms_logger_ = make_comms_logger(run_->config.comms_logger);
  if (comms_logger_) run_->world().set_logger(comms_logger_);
  observer_ = std::make_unique<StepObserver>(*run_);
  const models::Model::Use use(*run_->model);
  if (run_->config.layer_reduction.enabled) {
    agree(run_->context(), run_->world(), "finding the layers of a student",
          [&] { begin_with_layers(run_->config, *run_->model); });
  }
  run_->state = run_->model->attach_engine<zero::TrainState>();
  try {
    make_parts();
  } catch (...) {
    release_state(*run_);
    throw;
  }
}

void Engine::make_parts() {
  const models::Model& model = *run_->model;
  check_combinations(situation_of(*run_));
  check_experts(run_->config, model.parameters());
  check_exchange(run_->config, run_->mesh.shape(), run_->world().topology().node_of);
  check_rank_devices(*model.device(), run_->world());
  find_teacher(*run_);
  model.host()->use_threads(run_->pool.threads());
  check_memory(*run_);
  set_up_state(*run_);
  end_group_on_system_error(run_->world(), [this] {
    updater_ = std::make_unique<Updater>(run_->config, *run_->state, updates_ahead(*run_));
  });
  run_->state->arrays().undo_ahead = [this] { updater_->undo_ahead(); };
  run_->state->arrays().sync_masters = [this](bool write) {
    optim::Optimizer& optimizer = updater_->optimizer();
    if (write && optimizer.update_waits()) {
      check_call(Refusal::kParametersUnderAnUpdate, situation_of(*run_));
    }
    optimizer.put_back();
  };
  if (const std::string decay = updater_->describe_decay(); run_->first_rank() && !decay.empty()) {
    log_info("optimizer", decay);
  }
  scopes_ = std::make_unique<ParameterScopes>(*run_, *open_);
  guard_ = std::make_unique<StepGuard>(*run_, [this] { trainer_->drop_open_step(); });
  gradients_ = std::make_unique<ExternalGradients>(*run_, *open_, *scopes_, *guard_);
  values_ = std::make_unique<ParameterValues>(*run_, *open_, *scopes_, *updater_, *guard_);
  hold_teacher(*run_);
  feed_ = std::make_unique<DataFeed>(*run_);
  trainer_ = std::make_unique<Trainer>(*run_, *open_, *observer_, *scopes_, *updater_, *guard_);
  const CheckpointedRun saved{*run_, *open_, *updater_, *feed_, *caller_, control_, *guard_};
  saver_ = std::make_unique<CheckpointSaver>(saved);
  loader_ = std::make_unique<CheckpointLoader>(saved, *saver_, *scopes_);
  follow_ramp_up(run_->config, *open_);
  if (run_->config.dump_state) log_info("engine", dump_json(config_document()));
}

Engine::~Engine() {
  trainer_->end_passes();
  scopes_->release_all();
  release_state(*run_);
  if (!comms_logger_) return;
  run_->world().set_logger(nullptr);
  if (run_->first_rank()) log_info("comms", comms_logger_->table());
}

Tensor Engine::forward(const MicroBatch& batch) { return trainer_->forward(batch); }
void Engine::backward(const Tensor& loss) { trainer_->backward(loss); }
StepReport Engine::step() { return trainer_->step(); }
void Engine::set_boundary(std::optional<bool> boundary) { trainer_->set_boundary(boundary); }
void Engine::join() { trainer_->join(); }

void Engine::discard_gradients() {
  const models::Model::Use use(*run_->model);
  trainer_->drop_open_step();
}

void Engine::set_dataset(DatasetPtr dataset) {
  feed_->set_dataset(std::move(dataset));
  updater_->set_epoch_steps(feed_->epoch_steps());
}

StepReport Engine::train_batch() {
  DS_CHECK(feed_->has_dataset(), Code::kState, "train_batch needs a data set; set one first");
  DS_CHECK(open_->phase == OpenStep::Phase::kIdle, Code::kState,
           "a forward or backward of the caller is open");
  DS_CHECK(!open_->mode.boundary, Code::kState,
           "the caller sets the boundaries of steps; train_batch finds them itself");
  open_->check_synced("train_batch");
  const models::Model::Use use(*run_->model);
  CallControl::Call call(control_, "train_batch", run_->config.batch.accumulation);
  while (true) {
    next_part(run_->world(), call, open_->micro_batches);
    if (auto report = trainer_->run_micro_batch(feed_->next(*open_))) return *std::move(report);
  }
}

double Engine::evaluate(const Dataset& dataset, int64_t max_batches) {
  DS_CHECK(open_->phase == OpenStep::Phase::kIdle, Code::kState,
           "a forward or backward of the caller is open");
  const double loss = ds::evaluate(*run_, control_, dataset, max_batches);
  observer_->write_evaluation(open_->progress, loss);
  return loss;
}

void Engine::save(const std::string& folder, const std::string& tag) {
  saver_->save(folder, tag);
  observer_->sync();
}
void Engine::wait_for_save() { saver_->wait(); }
void Engine::load(const std::string& folder, const std::string& tag, const LoadOptions& options) {
  loader_->load(folder, tag, options);
}

const Config& Engine::config() const { return run_->config; }
Json Engine::config_document() const { return ds::config_document(run_->config); }
const std::shared_ptr<models::Model>& Engine::model() const { return run_->model; }
Json Engine::memory_report() const { return ds::memory_report(*run_->model, observer_->metrics()); }
const Json& Engine::profile() const { return observer_->metrics().profile(); }

const Json& Engine::experts() const { return observer_->metrics().experts(); }
const Progress& Engine::progress() const { return open_->progress; }
DType Engine::compute_type() const { return compute_type_of(run_->config); }
std::string Engine::comms_log() const {
  return comms_logger_ ? comms_logger_->table() : std::string();
}

double Engine::updated_ahead() const {
  return updater_->optimizer().ahead().value_or(optim::Optimizer::Ahead{}).share;
}
double Engine::loss_scale() const { return updater_->loss_scale(); }
int64_t Engine::optimizer_steps() const { return updater_->steps(); }
const std::vector<double>& Engine::rates() const { return updater_->rates(); }
void Engine::set_lr(double lr) { updater_->set_rates(lr); }

}  // namespace ds
