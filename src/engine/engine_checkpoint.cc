// Saving and loading an engine: masters and moments by name, and every counter that a bitwise
// resume needs.
#include <algorithm>

#include "base/log.h"
#include "checkpoint/background_save.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "models/saved_model.h"
#include "ops/split_master.h"

namespace ds {
namespace {

constexpr const char* kGradientState = "gradient";

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}
std::span<std::byte> writable_bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

// Numbers that lie elsewhere, for operators to read.
Tensor float_view(std::span<const std::byte> bytes) {
  return {std::make_shared<Storage>(DeviceKind::kCpu, 0, const_cast<std::byte*>(bytes.data()),
                                    static_cast<int64_t>(bytes.size()), true, nullptr),
          0,
          DType::kFloat32,
          {static_cast<int64_t>(bytes.size() / sizeof(float))}};
}

// What a tensor is, beside its name.
struct StateKey {
  TensorKind kind;
  std::string state;
};

// The moments of Adam have kinds of their own, all other optimizer state goes by name.
StateKey state_key(const std::string& name) {
  if (name == "exp_avg") return {TensorKind::kExpAvg, ""};
  if (name == "exp_avg_sq") return {TensorKind::kExpAvgSq, ""};
  return {TensorKind::kOptimizer, name};
}

TensorMeta meta_of(const nn::Parameter& parameter, const StateKey& key) {
  return models::parameter_meta(parameter, key.kind, key.state);
}

// The parts of the configuration that decide the learning rate: when they are unchanged, a resumed
// run continues with the saved rate, else with what the new configuration says.
Json rate_config(const Config& config) {
  const Json& all = config.resolved();
  return {{"optimizer", all.value("optimizer", Json())},
          {"scheduler", all.value("scheduler", Json())},
          {"fp16", all.value("fp16", Json())}};
}

// Version 0.1 had Adam and one rate.
Json updater_of_version_0_1(const CheckpointReader& reader, const Updater& updater) {
  Json saved = updater.save();
  saved["steps"] = reader.state_int("optimizer.steps");
  saved["rates"] = {reader.state_double("optimizer.lr")};
  return saved;
}

}  // namespace

void Engine::save(const std::string& folder, const std::string& tag) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState,
           "saving between forward and step would lose the open micro batch; call step first");
  wait_for_save();
  const models::Model::Use use(*model_);
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  const nn::ParameterSet& parameters = model_->parameters();

  CheckpointWriterOptions options;
  options.folder = folder;
  options.tag = tag.empty() ? str_cat("global_step", progress_.steps) : tag;
  options.counters = {progress_.steps, progress_.skipped, progress_.micro_steps, progress_.samples,
                      progress_.tokens};
  options.topology.world = options.topology.data = comm_->size();
  options.writer = str_cat("ds ", kLibraryVersion);
  options.blob.pool = &pool_;
  if (background_) options.blob.hold = background_->buffers();
  auto writer = std::make_unique<CheckpointWriter>(options);
  PartWriter& part = writer->part();

  state.settle_gradients(ctx);
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (!p.trainable && config_.exclude_frozen_parameters) continue;
    const auto lasts = [](bool view) { return view ? Lifetime::kUntilFinish : Lifetime::kCall; };
    part.add_tensor(meta_of(p, {TensorKind::kMaster, ""}), bytes_of(state.read_master(ctx, id)),
                    lasts(static_cast<bool>(state.masters())));
    if (!p.trainable) continue;
    const size_t place = updater_->place(id);
    for (const std::string& name : updater_->optimizer().states(place)) {
      Tensor value = updater_->optimizer().state_view(place, name);
      const bool view = static_cast<bool>(value);
      if (!view) value = updater_->optimizer().read_state(ctx, place, name);
      part.add_tensor(meta_of(p, state_key(name)), bytes_of(value), lasts(view));
    }
    if (accumulated_ > 0) {
      TensorMeta meta = meta_of(p, {TensorKind::kOptimizer, kGradientState});
      meta.dtype = state.accumulation_type();
      part.add_tensor(meta, bytes_of(state.gradient_view(id)), Lifetime::kUntilFinish);
    }
  }
  models::describe_model(*model_, part);
  part.set_json("ds_config", config_.resolved());
  part.set_json("rate_config", rate_config(config_));
  part.set_json("updater", updater_->save());
  part.set_int("random.seed", static_cast<int64_t>(config_.seed));
  part.set_int("accumulation.micro_batches", accumulated_);
  part.set_double("accumulation.loss_sum", loss_sum_);
  part.set_int("accumulation.tokens", step_tokens_);
  part.set_json("client_state", client_state_);
  if (tokenizer_) part.set_text(models::kTokenizerState, tokenizer_->to_json());
  if (background_) {
    background_->start(std::move(writer), options.tag);
  } else {
    writer->commit();
  }
  monitors_->sync();
}

void Engine::wait_for_save() {
  if (background_) background_->wait();
}

void Engine::load(const std::string& folder, const std::string& tag) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward of the caller is open");
  if (background_) background_->settle();
  const models::Model::Use use(*model_, models::Model::Use::Purpose::kLoad);
  if (!tag.empty()) return restore(CheckpointReader::open(folder, tag));
  CheckpointSearch search(folder);
  while (std::optional<CheckpointReader> reader = search.next()) {
    const std::string found = reader->tag();
    try {
      return restore(std::move(*reader));
    } catch (const Error& error) {
      // What does not fit this engine is for the caller to know.
      if (error.code() != Code::kCorrupt && error.code() != Code::kIo) throw;
      search.pass_over(found, error.message());
    }
  }
  search.fail();
}

void Engine::check_compatible(const CheckpointReader& reader) const {
  const std::string where = printable(reader.folder().string(), 300);
  const nn::ParameterSet& parameters = model_->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    // What is frozen may be left out of a checkpoint: the model has it already.
    if (!p.trainable && reader.find(p.name, TensorKind::kMaster) == nullptr) {
      DS_CHECK(overwritten_.empty() || !overwritten_[static_cast<size_t>(id)], Code::kCorrupt,
               "the checkpoint ", where, " leaves out the frozen ", p.name,
               ", which a load that failed has overwritten; load one that holds it, or make the "
               "model again");
      continue;
    }
    const TensorMeta& meta = reader.tensor(p.name, TensorKind::kMaster).meta;
    const Shape saved(meta.shape);
    DS_CHECK(saved == p.shape && meta.dtype == DType::kFloat32, Code::kInvalidArgument,
             "the checkpoint ", where, " holds ", p.name, " as ", dtype_name(meta.dtype),
             " with shape ", saved.text(), ", this model has float32 ", p.shape.text());
    DS_CHECK(!p.trainable || (meta.flags & kTrainable) != 0, Code::kInvalidArgument,
             "the checkpoint ", where, " holds ", p.name,
             " as frozen, without optimizer state; this model trains it");
  }
  for (const TensorRecord& tensor : reader.manifest().tensors) {
    DS_CHECK(tensor.meta.kind != TensorKind::kMaster ||
                 parameters.lookup(tensor.meta.name) != nn::kNoParam,
             Code::kInvalidArgument, "the checkpoint holds ", printable(tensor.meta.name),
             ", which this model does not have");
  }
}

// Where every tensor goes: to its own memory or, where that is not fp32, through its conversion.
std::vector<TensorTarget> Engine::restore_targets(const CheckpointReader& reader,
                                                  bool with_gradients) {
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  optim::Optimizer& optimizer = updater_->optimizer();
  const nn::ParameterSet& parameters = model_->parameters();
  std::vector<TensorTarget> targets;
  const auto add = [&](const TensorRecord& record, DType type, const Shape& shape) -> auto& {
    DS_CHECK(record.meta.dtype == type && Shape(record.meta.shape) == shape, Code::kInvalidArgument,
             "the checkpoint holds the ", record.meta.text(), " as ", dtype_name(record.meta.dtype),
             " ", Shape(record.meta.shape).text(), ", needed is ", dtype_name(type), " ",
             shape.text());
    return targets.emplace_back(TensorTarget{&record, {}, {}});
  };
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (const TensorRecord* record = reader.find(p.name, TensorKind::kMaster)) {
      TensorTarget& target = add(*record, DType::kFloat32, p.shape);
      if (state.masters()) {
        target.out = writable_bytes_of(state.master(id));
      } else {
        target.sink = [ctx, &flat = state.flat(), from = state.layout().range(id).begin](
                          uint64_t at, std::span<const std::byte> bytes) {
          const Tensor piece = float_view(bytes);
          const int64_t begin = from + static_cast<int64_t>(at / sizeof(float));
          const int64_t end = begin + piece.elements();
          Tensor weights = flat.model.slice(0, begin, end);
          Tensor low = flat.low_halves.slice(0, begin, end);
          ops::split_masters(ctx, piece, weights, low);
        };
      }
    }
    if (!p.trainable) continue;
    const size_t place = updater_->place(id);
    for (const std::string& name : optimizer.states(place)) {
      const StateKey key = state_key(name);
      TensorTarget& target =
          add(reader.tensor(p.name, key.kind, key.state), DType::kFloat32, p.shape);
      if (const Tensor in_place = optimizer.state_view(place, name)) {
        target.out = writable_bytes_of(in_place);
      } else {
        target.sink = [&optimizer, place, name](uint64_t at, std::span<const std::byte> bytes) {
          const auto first = static_cast<int64_t>(at / sizeof(float));
          const auto last = first + static_cast<int64_t>(bytes.size() / sizeof(float));
          const optim::OwnedRange owned = optimizer.owned(place);
          const int64_t begin = std::max(first, owned.begin), end = std::min(last, owned.end);
          if (begin >= end) return;
          optimizer.write_state_range(place, name, begin, end,
                                      reinterpret_cast<const float*>(bytes.data()) + begin - first);
        };
      }
    }
    if (with_gradients) {
      add(reader.tensor(p.name, TensorKind::kOptimizer, kGradientState), state.accumulation_type(),
          p.shape)
          .out = writable_bytes_of(state.gradient_view(id));
    }
  }
  return targets;
}

// Everything but the bytes of the tensors is read and checked first, and also these when the engine
// has trained: then nothing was changed by what fails. After that they go to the engine's own
// memory, where a failure leaves a mixture, which the model is marked for until a load succeeds.
void Engine::restore(CheckpointReader reader) {
  reader.use_threads(&pool_);
  check_compatible(reader);
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();

  const int64_t accumulated = reader.state_int("accumulation.micro_batches");
  DS_CHECK(accumulated >= 0 && accumulated < config_.batch.accumulation, Code::kConfig,
           "the checkpoint was saved after ", accumulated,
           " micro batches of an open step, which gradient_accumulation_steps ",
           config_.batch.accumulation, " cannot continue");
  if (accumulated > 0) state.settle_gradients(ctx);
  const std::vector<TensorTarget> targets = restore_targets(reader, accumulated > 0);
  const double loss_sum = reader.state_double("accumulation.loss_sum");
  const int64_t step_tokens = reader.state_int("accumulation.tokens");
  const bool same_rate = reader.state_json("rate_config") == rate_config(config_);
  Updater::Saved updater =
      updater_->read(reader.has_state("updater") ? reader.state_json("updater")
                                                 : updater_of_version_0_1(reader, *updater_),
                     same_rate);
  Json client_state = reader.state_json("client_state");
  const int64_t seed = reader.state_int("random.seed");
  std::shared_ptr<const Tokenizer> tokenizer = tokenizer_;
  if (!tokenizer && reader.has_state(models::kTokenizerState)) {
    tokenizer = parse_tokenizer_json(reader.state_text(models::kTokenizerState),
                                     "the checkpoint's tokenizer");
  }
  const bool trained = progress_.micro_steps != loaded_micro_steps_;
  if (trained && model_->incomplete().empty()) reader.check_all(targets);

  const std::string where = printable(reader.folder().string(), 300);
  const nn::ParameterSet& parameters = model_->parameters();
  overwritten_.resize(static_cast<size_t>(parameters.size()));
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (reader.find(parameters[id].name, TensorKind::kMaster) == nullptr) continue;
    overwritten_[static_cast<size_t>(id)] = true;
  }
  model_->set_incomplete(str_cat("the load of ", where, " did not come to its end"));
  try {
    reader.read_all(targets);
  } catch (const Error& error) {
    model_->set_incomplete(str_cat("the load of ", where, " failed half way: ", error.message()));
    throw Error(error.code(), str_cat(error.message(),
                                      "; the engine is left without whole weights and can only "
                                      "load a checkpoint"));
  }
  updater_->restore(std::move(updater));
  if (accumulated == 0) state.clear_gradients(ctx);
  state.masters_changed(ctx);
  if (seed != static_cast<int64_t>(config_.seed)) {
    log_warning("engine", "the checkpoint was trained with seed ", seed,
                ", this configuration says ", config_.seed,
                ": dropout will differ from an uninterrupted run");
  }
  const StepCounters& counters = reader.manifest().counters;
  progress_ = {counters.global_steps, counters.skipped_steps, counters.micro_steps,
               counters.global_samples, counters.global_tokens};
  loaded_micro_steps_ = progress_.micro_steps;
  accumulated_ = accumulated;
  loss_sum_ = loss_sum;
  step_tokens_ = step_tokens;
  client_state_ = std::move(client_state);
  tokenizer_ = std::move(tokenizer);
  overwritten_.clear();
  model_->set_incomplete({});
}

}  // namespace ds
