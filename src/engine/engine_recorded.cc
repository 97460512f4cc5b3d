// Micro batches of train_batch, which may be recorded as CUDA graphs.
#include "base/log.h"
#include "engine/engine.h"

namespace ds {
namespace {

// Why graph_harvesting does nothing; empty when it does.
std::string why_none(const Config& config, const models::Model& model, const Communicator& comm) {
  if (model.device()->kind() != DeviceKind::kCuda) return "the model is not on a GPU";
  if (comm.size() > 1) return "several ranks train";
  if (!model.has_architecture()) return "the passes are the caller's";
  if (model.architecture().info().loss != nn::LossKind::kCrossEntropy)
    return "the loss of this head is computed on the host";
  const ActivationCheckpointingConfig& segments = config.activation_checkpointing;
  if (segments.enabled && segments.offload) return "cpu_checkpointing copies beside the work";
  if (config.zero.offload_optimizer) return "gradients travel to the host beside the work";
  if (config.precision.fp8.enabled) return "weights in fp8 are cast in some micro batches only";
  if (config.wall_clock_breakdown || config.flops_profiler.enabled)
    return "parts of a micro batch are timed";
  return {};
}

}  // namespace

std::unique_ptr<StepGraphs> Engine::make_graphs() const {
  if (!config_.graphs) return nullptr;
  if (const std::string why = why_none(config_, *model_, *comm_); !why.empty()) {
    log_warning("engine", "graph_harvesting: micro batches are not recorded: ", why);
    return nullptr;
  }
  return std::make_unique<StepGraphs>(std::static_pointer_cast<CudaDevice>(model_->device()));
}

void Engine::run_micro_batch(const MicroBatch& samples) {
  models::Batch batch = make_batch(samples);
  const Tensor labels = make_labels(samples.labels, samples.ids);
  // Nothing can be timed while it is recorded.
  if (graphs_ && !product_timing_.in_first_step() && run_recorded(batch, labels)) return;
  run_forward(models::to_device(std::move(batch), model_->device()), labels);
  run_backward();
}

bool Engine::run_recorded(const models::Batch& batch, const Tensor& labels) {
  begin_step_clock();
  const nn::Labels counted = nn::place_labels(labels, model_->host());
  const StepGraphs::Inputs inputs{batch,
                                  labels,
                                  loss_gradient() * counted.share(),
                                  {static_cast<uint32_t>(progress_.steps), first_sample(batch)}};
  const auto pass = [&](const StepGraphs::Placed& placed) {
    nn::TapeOptions options = tape_options(placed.batch);
    options.step_memory = placed.stream_position;
    options.loss_scale = placed.loss_scale;
    options.constants = placed.constants;
    nn::Tape tape(context(), model_->state(), &model_->state(), options);
    const nn::SummedLoss loss = forward_pass(tape, placed.batch, placed.labels);
    backward_pass(tape, *loss.slot);
    return loss.sum;
  };
  try {
    if (!graphs_->run(inputs, model_->state(), pass)) return false;
  } catch (...) {
    drop_open_step();
    throw;
  }
  count_batch(batch.ids, {graphs_->loss(), counted.counted}, counted.counted);
  phase_ = Phase::kBackwardDone;
  weights_are_free();
  return true;
}

}  // namespace ds
