// Saving and loading an engine: masters and moments by name, and every counter that a bitwise
// resume needs.
#include "base/log.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "models/weights.h"

namespace ds {
namespace {

constexpr const char* kGradientState = "gradient";

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}
std::span<std::byte> writable_bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

TensorMeta meta_of(const nn::Parameter& parameter, TensorKind kind, const char* state = "") {
  TensorMeta meta;
  meta.name = parameter.name;
  meta.kind = kind;
  meta.state = state;
  meta.dtype = DType::kFloat32;
  meta.shape.assign(parameter.shape.sizes().begin(), parameter.shape.sizes().end());
  meta.aliases = parameter.aliases;
  meta.flags = parameter.trainable ? kTrainable : kFrozen;
  return meta;
}

// The parts of the configuration that decide the learning rate: when they are unchanged, a resumed
// run continues with the saved rate, else with what the new configuration says.
Json rate_config(const Config& config) {
  const Json& all = config.resolved();
  return {{"optimizer", all.value("optimizer", Json())},
          {"scheduler", all.value("scheduler", Json())}};
}

}  // namespace

void Engine::save(const std::string& folder, const std::string& tag) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState,
           "saving between forward and step would lose the open micro batch; call step first");
  const models::Model::Use use(*model_);
  zero::ParameterState& state = model_->state();
  const nn::ParameterSet& parameters = model_->parameters();

  CheckpointWriterOptions options;
  options.folder = folder;
  options.tag = tag.empty() ? str_cat("global_step", progress_.steps) : tag;
  options.counters = {progress_.steps, progress_.skipped, progress_.micro_steps, progress_.samples,
                      progress_.tokens};
  options.topology.world = options.topology.data = comm_->size();
  options.writer = str_cat("ds ", kLibraryVersion);
  CheckpointWriter writer(options);
  PartWriter& part = writer.part();

  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    part.add_tensor(meta_of(p, TensorKind::kMaster), bytes_of(state.master(id)));
    if (!p.trainable) continue;
    part.add_tensor(meta_of(p, TensorKind::kExpAvg), bytes_of(state.view(adam_->exp_avg(), id)));
    part.add_tensor(meta_of(p, TensorKind::kExpAvgSq),
                    bytes_of(state.view(adam_->exp_avg_sq(), id)));
    if (accumulated_ > 0) {
      part.add_tensor(meta_of(p, TensorKind::kOptimizer, kGradientState),
                      bytes_of(state.gradient_view(id)));
    }
  }
  part.set_json(models::kModelConfigState, model_->architecture().config());
  part.set_json("ds_config", config_.resolved());
  part.set_json("rate_config", rate_config(config_));
  part.set_int("optimizer.steps", adam_->steps());
  part.set_double("optimizer.lr", lr_);
  part.set_int("random.seed", static_cast<int64_t>(config_.seed));
  part.set_int("accumulation.micro_batches", accumulated_);
  part.set_double("accumulation.loss_sum", loss_sum_);
  part.set_int("accumulation.tokens", step_tokens_);
  part.set_json("client_state", client_state_);
  if (tokenizer_) part.set_text(models::kTokenizerState, tokenizer_->to_json());
  writer.commit();
}

void Engine::load(const std::string& folder, const std::string& tag) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward of the caller is open");
  const models::Model::Use use(*model_);
  if (tag.empty()) {
    restore(open_latest_valid(folder).reader);
  } else {
    restore(CheckpointReader::open(folder, tag));
  }
}

void Engine::check_compatible(const CheckpointReader& reader) const {
  const nn::ParameterSet& parameters = model_->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    const Shape saved(reader.tensor(p.name, TensorKind::kMaster).meta.shape);
    DS_CHECK(saved == p.shape, Code::kInvalidArgument, "the checkpoint ",
             printable(reader.folder().string(), 300), " holds ", p.name, " with shape ",
             saved.text(), ", this model has ", p.shape.text());
  }
  for (const TensorRecord& tensor : reader.manifest().tensors) {
    DS_CHECK(tensor.meta.kind != TensorKind::kMaster ||
                 parameters.lookup(tensor.meta.name) != nn::kNoParam,
             Code::kInvalidArgument, "the checkpoint holds ", printable(tensor.meta.name),
             ", which this model does not have");
  }
}

// Reads everything into fresh buffers before anything of the engine changes.
void Engine::restore(const CheckpointReader& reader) {
  check_compatible(reader);
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  const nn::ParameterSet& parameters = model_->parameters();

  const int64_t accumulated = reader.state_int("accumulation.micro_batches");
  DS_CHECK(accumulated >= 0 && accumulated < config_.batch.accumulation, Code::kConfig,
           "the checkpoint was saved after ", accumulated,
           " micro batches of an open step, which gradient_accumulation_steps ",
           config_.batch.accumulation, " cannot continue");
  const auto fresh = [&](const Tensor& like, MemoryTag tag) {
    return Tensor::zeros(ctx.device, like.dtype(), like.shape(), tag);
  };
  Tensor masters = fresh(state.masters(), MemoryTag::kParameters);
  Tensor exp_avg = fresh(adam_->exp_avg(), MemoryTag::kOptimizer);
  Tensor exp_avg_sq = fresh(adam_->exp_avg_sq(), MemoryTag::kOptimizer);
  Tensor gradients = fresh(state.gradients(), MemoryTag::kGradients);
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    const auto read = [&](const Tensor& flat, TensorKind kind, const char* name = "") {
      reader.read(reader.tensor(p.name, kind, name), writable_bytes_of(state.view(flat, id)));
    };
    read(masters, TensorKind::kMaster);
    if (!p.trainable) continue;
    read(exp_avg, TensorKind::kExpAvg);
    read(exp_avg_sq, TensorKind::kExpAvgSq);
    if (accumulated > 0) read(gradients, TensorKind::kOptimizer, kGradientState);
  }
  const int64_t optimizer_steps = reader.state_int("optimizer.steps");
  const double saved_lr = reader.state_double("optimizer.lr");
  const double loss_sum = reader.state_double("accumulation.loss_sum");
  const int64_t step_tokens = reader.state_int("accumulation.tokens");
  const bool same_rate = reader.state_json("rate_config") == rate_config(config_);
  Json client_state = reader.state_json("client_state");
  if (reader.state_int("random.seed") != static_cast<int64_t>(config_.seed)) {
    log_warning("engine", "the checkpoint was trained with seed ", reader.state_int("random.seed"),
                ", this configuration says ", config_.seed,
                ": dropout will differ from an uninterrupted run");
  }
  std::shared_ptr<const Tokenizer> tokenizer = tokenizer_;
  if (!tokenizer && reader.has_state(models::kTokenizerState)) {
    tokenizer = parse_tokenizer_json(reader.state_text(models::kTokenizerState),
                                     "the checkpoint's tokenizer");
  }

  state.masters() = std::move(masters);
  adam_->exp_avg() = std::move(exp_avg);
  adam_->exp_avg_sq() = std::move(exp_avg_sq);
  state.gradients() = std::move(gradients);
  state.masters_changed(ctx);
  adam_->set_steps(optimizer_steps);
  lr_ = same_rate ? saved_lr : schedule_.lr(optimizer_steps);
  const StepCounters& counters = reader.manifest().counters;
  progress_ = {counters.global_steps, counters.skipped_steps, counters.micro_steps,
               counters.global_samples, counters.global_tokens};
  accumulated_ = accumulated;
  loss_sum_ = loss_sum;
  step_tokens_ = step_tokens;
  client_state_ = std::move(client_state);
  tokenizer_ = std::move(tokenizer);
}

}  // namespace ds
