#include "engine/model_passes.h"

#include <utility>

#include "base/log.h"
#include "engine/combinations.h"
#include "engine/open_step.h"
#include "engine/recompute.h"
#include "engine/run_context.h"
#include "engine/share_options.h"
#include "engine/step_observer.h"
#include "engine/updater.h"
#include "nn/activation_offload.h"
#include "nn/distilled_loss.h"
#include "nn/stored_inputs.h"

namespace ds {
namespace {

// With nvme_checkpointing.
StoreRoom::Make input_files(const Config& config, const std::shared_ptr<Device>& host) {
  auto files = std::make_shared<io::FileArrays>(input_file_options(config), host);
  return [files](int64_t bytes) { return files->make("activations", DType::kUInt8, bytes); };
}

}  // namespace

struct ModelPasses::Pending {
  Pending(const OpContext& ctx, zero::TrainState& state, nn::TapeOptions options,
          std::unique_ptr<nn::KeptInputs> inputs)
      : kept_inputs(std::move(inputs)),
        tape(ctx, state.weights(), &state.gradients(),
             with(std::move(options), kept_inputs.get())) {}
  static nn::TapeOptions with(nn::TapeOptions options, nn::KeptInputs* inputs) {
    options.kept_inputs = inputs;
    return options;
  }
  nn::RouterRecord routers;                           // the tape refers to it
  const std::unique_ptr<nn::KeptInputs> kept_inputs;  // goes after the tape
  nn::Tape tape;
  std::shared_ptr<nn::GradientSlot> loss_gradient;
  Tensor loss;  // fp32 [] on the host, where the caller has it
};

ModelPasses::ModelPasses(RunContext& run, OpenStep& open, StepObserver& observer,
                         const Updater& updater)
    : run_(run), open_(open), observer_(observer), updater_(updater) {
  const ActivationCheckpointingConfig& segments = run_.config.activation_checkpointing;
  if (run_.model->has_architecture()) {
    recompute_of(segments, run_.model->architecture().info());
    if (segments.in_files()) {
      input_files_ = std::make_unique<StoreRoom>(input_files(run_.config, run_.model->host()));
    }
  }
  if (segments.enabled && segments.cpu_checkpointing &&
      run_.model->device()->kind() == DeviceKind::kCuda) {
    offload_stream_ = run_.model->device()->create_stream();
  }
  graphs_ = make_graphs();
}

ModelPasses::~ModelPasses() = default;

std::unique_ptr<StepGraphs> ModelPasses::make_graphs() const {
  if (!run_.config.graph_harvesting) return nullptr;
  if (const std::string why = without_effect("graph_harvesting", situation_of(run_));
      !why.empty()) {
    if (run_.first_rank()) {
      log_warning("engine", "graph_harvesting: micro batches are not recorded: ", why);
    }
    return nullptr;
  }
  return std::make_unique<StepGraphs>(std::static_pointer_cast<CudaDevice>(run_.model->device()));
}

void ModelPasses::forward(const models::Batch& batch, const Tensor& labels) {
  open_.begin_clock();
  const ScopedTimer timer = observer_.time("forward");
  follow_teacher(batch.ids.size(1));
  auto pending =
      std::make_unique<Pending>(run_.context(), *run_.state, tape_options(batch), keep_inputs());
  const nn::Labels placed = nn::place_labels(labels, run_.model->device());
  const auto record = [&] {
    try {
      return record_forward(pending->tape, batch, placed, &pending->routers);
    } catch (...) {
      pending.reset();
      run_.state->weights().drop_pass();
      throw;
    }
  };
  Losses losses = record();
  pending->loss_gradient = std::move(losses.all.slot);
  pending_ = std::move(pending);
  open_.phase = OpenStep::Phase::kForwardDone;
  run_.model->set_step_open(true);
  if (open_.mode.joined) return;
  const nn::RouterRecord& routers = pending_->routers;
  observer_.metrics().count_experts(routers);
  count_batch(batch.ids, {losses.all.sum, placed.counted, routers.loss()}, placed.counted);
  if (!losses.teacher) return;
  open_.label_losses.add({losses.labels, placed.counted});
  open_.teacher_losses.add({losses.teacher, placed.counted});
}

// Held while it takes part, also after a load that went back.
void ModelPasses::follow_teacher(int64_t tokens) {
  if (!run_.teacher) return;
  if (!distils()) return run_.teacher->free();
  run_.teacher->check_length(tokens);
  run_.teacher->hold(run_.context());
}

bool ModelPasses::distils() const { return run_.config.distillation.active(open_.progress.steps); }

Tensor ModelPasses::give_loss() {
  pending_->loss = run_.host_context().workspace(DType::kFloat32, {});
  *pending_->loss.data<float>() = open_.losses.newest();
  return pending_->loss;
}

bool ModelPasses::gave(const Tensor& loss) const {
  return loss && loss.storage() == pending_->loss.storage();
}

// Random numbers follow the sample's place in the step, however ranks and micro batches share it.
uint32_t ModelPasses::first_sample(const models::Batch& batch) const {
  return static_cast<uint32_t>(open_.first_sample + run_.data_rank() * batch.ids.size(0));
}

nn::TapeOptions ModelPasses::tape_options(const models::Batch& batch) const {
  nn::TapeOptions options;
  options.seed = run_.config.seed;
  options.step = static_cast<uint32_t>(open_.progress.steps);
  options.first_sample = first_sample(batch);
  options.loss_gradient = loss_gradient();
  options.profile = observer_.metrics().profile_for(open_.progress.steps);
  return options;
}

// Null where inputs of checkpointed segments stay where they are.
std::unique_ptr<nn::KeptInputs> ModelPasses::keep_inputs() const {
  if (input_files_) return std::make_unique<nn::StoredInputs>(*input_files_);
  if (!offload_stream_) return nullptr;
  return std::make_unique<nn::ActivationOffload>(run_.model->device(), *offload_stream_);
}

nn::Value ModelPasses::record_logits(nn::Tape& tape, const models::Batch& batch,
                                     nn::RouterRecord* routers) {
  run_.state->gradients().set_loss_scale(updater_.loss_scale());
  run_.state->weights().begin_pass();
  models::ForwardOptions forward_options;
  forward_options.padded_logits = true;
  forward_options.routers = routers;
  forward_options.expert_ranks = run_.expert_ranks();
  const models::ArchitectureInfo& info = run_.model->architecture().info();
  forward_options.recompute = recompute_of(run_.config.activation_checkpointing, info);
  return run_.model->architecture().logits(tape, batch, forward_options);
}

ModelPasses::Losses ModelPasses::record_forward(nn::Tape& tape, const models::Batch& batch,
                                                const nn::Labels& labels,
                                                nn::RouterRecord* routers) {
  const nn::Value logits = record_logits(tape, batch, routers);
  if (distils()) return distil(tape, batch, labels, logits);
  const models::ArchitectureInfo& info = run_.model->architecture().info();
  return {nn::summed_loss(tape, logits, labels, info.outputs(), info.loss)};
}

// The teacher's pass comes after the student's, so that of its logits those of one sample at a time
// need memory.
ModelPasses::Losses ModelPasses::distil(nn::Tape& tape, const models::Batch& batch,
                                        const nn::Labels& labels, const nn::Value& logits) const {
  const DistillationConfig& keys = run_.config.distillation;
  TeacherPass teacher = run_.teacher->run(run_.context(), batch);
  nn::Distillation from;
  from.weights = {static_cast<float>(keys.kd_alpha_ce), static_cast<float>(keys.kd_beta_ce),
                  static_cast<float>(keys.kd_temp)};
  from.parts = batch.ids.size(0);
  from.teacher = [&teacher](int64_t sample) { return teacher.logits(sample); };
  nn::DistilledLoss loss = nn::summed_distillation(
      tape, logits, labels, run_.model->architecture().info().outputs(), from);
  return {{loss.sum, std::move(loss.slot)}, loss.cross_entropy, loss.divergence};
}

void ModelPasses::count_batch(const Tensor& ids, nn::MeanLoss loss, int64_t counted) {
  open_.forward_counted = true;
  warn_of_other_size(ids.size(0));
  observer_.metrics().count_batch(ids);
  open_.losses.add(std::move(loss));
  open_.tokens += counted;
  open_.progress.tokens += counted;
  open_.count_samples(ids.size(0), run_.data_ranks(), ids.size(0));
}

void ModelPasses::warn_of_other_size(int64_t samples) {
  if (samples == run_.config.batch.micro_batch || std::exchange(warned_sizes_, true)) return;
  log_warning("engine", "a micro batch of ", samples,
              " samples, where the configuration's train_micro_batch_size_per_gpu is ",
              run_.config.batch.micro_batch,
              "; every micro batch weighs the same in a step, whatever its size");
}

// What backward starts with.
float ModelPasses::loss_gradient() const {
  if (open_.mode.joined) return 0;
  if (!run_.config.managed_gradient_accumulation) return static_cast<float>(updater_.loss_scale());
  return static_cast<float>(updater_.loss_scale() /
                            static_cast<double>(run_.config.batch.accumulation));
}

void ModelPasses::backward() {
  const ScopedTimer timer = observer_.time("backward");
  if (open_.mode.no_sync) run_.state->gradients().hold_backward();
  open_.reduction_deferred = open_.mode.no_sync;
  run_backward(pending_->tape, *pending_->loss_gradient);
  pending_.reset();
}

void ModelPasses::run_backward(nn::Tape& tape, nn::GradientSlot& slot) {
  Tensor upstream = run_.host_context().workspace(DType::kFloat32, {});
  *upstream.data<float>() = loss_gradient();
  slot.add(run_.context(), upstream, true);
  const ScopedTimer inner = observer_.time("backward_inner");
  tape.backward();
  run_.state->finish_backward();
}

void ModelPasses::drop() { pending_.reset(); }

ModelPasses::GraphInputs ModelPasses::graph_inputs(const models::Batch& batch,
                                                   const Tensor& labels) const {
  const nn::Labels counted = nn::place_labels(labels, run_.model->host());
  return {{batch,
           labels,
           loss_gradient() * counted.share(),
           {static_cast<uint32_t>(open_.progress.steps), first_sample(batch)}},
          counted.counted};
}

bool ModelPasses::run_graph(const GraphInputs& micro_batch) {
  const auto pass = [&](const StepGraphs::Placed& placed) {
    nn::TapeOptions options = tape_options(placed.batch);
    options.step_memory = placed.stream_position;
    options.loss_scale = placed.loss_scale;
    options.constants = placed.constants;
    zero::TrainState& state = *run_.state;
    nn::Tape tape(run_.context(), state.weights(), &state.gradients(), options);
    const Losses losses = record_forward(tape, placed.batch, placed.labels, nullptr);
    run_backward(tape, *losses.all.slot);
    return losses.all.sum;
  };
  run_.state->gradients().set_loss_scale(updater_.loss_scale());
  return graphs_->run(micro_batch.inputs, *run_.state, pass);
}

void ModelPasses::finish_graph(const GraphInputs& micro_batch) {
  count_batch(micro_batch.inputs.batch.ids, {graphs_->loss(), micro_batch.counted},
              micro_batch.counted);
}

}  // namespace ds
