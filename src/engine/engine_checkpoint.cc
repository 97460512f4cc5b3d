// Saving and loading an engine: masters and moments by name, and every counter that a bitwise
// resume needs.
#include <algorithm>

#include "base/log.h"
#include "checkpoint/background_save.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/agreement.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "models/saved_model.h"
#include "ops/split_master.h"
#include "tensor/transfer.h"

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

// Ranks may give different tags by mistake; what then happens is configured.
std::string Engine::agreed_tag(const std::string& tag) {
  const std::string own = tag.empty() ? str_cat("global_step", progress_.steps) : tag;
  const std::string first = broadcast_text(context(), *comm_, own);
  if (config_.tag_validation == TagValidation::kIgnore) return first;
  const std::string text =
      str_cat("rank ", comm_->rank(), " saves as \"", printable(own), "\" and rank 0 as \"",
              printable(first), "\"; give every rank the same tag");
  agree(context(), *comm_, "choosing the tag", [&] {
    DS_CHECK(own == first || config_.tag_validation == TagValidation::kWarn, Code::kInvalidArgument,
             text);
  });
  if (own != first) log_warning("engine", text);
  return first;
}

void Engine::save(const std::string& folder, const std::string& tag) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState,
           "saving between forward and step would lose the open micro batch; call step first");
  wait_for_save();
  const models::Model::Use use(*model_);
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();

  CheckpointWriterOptions options;
  options.folder = folder;
  options.tag = agreed_tag(tag);
  options.counters = {progress_.steps, progress_.skipped, progress_.micro_steps, progress_.samples,
                      progress_.tokens};
  options.topology.world = options.topology.data = comm_->size();
  options.writer = str_cat("ds ", kLibraryVersion);
  options.blob.pool = &pool_;
  const bool later = background_ && comm_->size() == 1;
  if (later) options.blob.hold = background_->buffers();

  constexpr const char* kWhat = "saving a checkpoint";
  const bool first = comm_->rank() == 0;
  std::unique_ptr<CheckpointWriter> writer;
  std::unique_ptr<PartWriter> other;
  agree(ctx, *comm_, kWhat, [&] {
    if (first) writer = std::make_unique<CheckpointWriter>(options);
  });
  const std::string temporary =
      broadcast_text(ctx, *comm_, first ? writer->temporary().string() : std::string());
  state.settle_gradients(ctx);
  state.reduce_replicas();
  agree_on_fp8();
  std::string others_part;
  agree(ctx, *comm_, kWhat, [&] {
    if (!first) other = std::make_unique<PartWriter>(temporary, comm_->rank(), options.blob);
    save_tensors(first ? writer->part() : *other);
    if (first) save_fp8(writer->part());
    if (first) save_counters(writer->part());
    if (!first) others_part = encode_manifest(other->finish());
  });
  const std::vector<std::string> parts = gather_texts(ctx, *comm_, others_part);
  if (later) {
    background_->start(std::move(writer), options.tag);
  } else {
    agree(ctx, *comm_, kWhat, [&] {
      if (!first) return;
      for (size_t rank = 1; rank < parts.size(); ++rank) {
        writer->merge(decode_manifest(std::as_bytes(std::span(parts[rank])),
                                      str_cat("the part of rank ", rank)));
      }
      writer->commit();
    });
  }
  monitors_->sync();
}

// What this rank saves of a parameter: what it owns or, where everybody owns everything, an equal
// share.
zero::FlatRange Engine::saved_share(nn::ParamId id) const {
  const zero::FlatLayout& layout = model_->state().layout();
  if (layout.world() > 1) {
    if (!model_->state().first_of_replicas()) return {};
    const zero::OwnedPart part = layout.part(id);
    return {part.first, part.first + part.count};
  }
  const int64_t n = model_->parameters()[id].shape.elements(), world = comm_->size();
  return {n * comm_->rank() / world, n * (comm_->rank() + 1) / world};
}

void Engine::save_tensors(PartWriter& part) {
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  const nn::ParameterSet& parameters = model_->parameters();
  optim::Optimizer& optimizer = updater_->optimizer();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (!p.trainable && config_.exclude_frozen_parameters) continue;
    const zero::FlatRange share = saved_share(id);
    const bool whole = share.elements() == p.shape.elements();
    if (share.elements() == 0 && !(p.shape.elements() == 0 && comm_->rank() == 0)) continue;
    const int64_t owned_from = state.layout().part(id).first;
    const auto add = [&](const TensorMeta& meta, const Tensor& owned, bool view) {
      const Lifetime lasts = view && on_host(owned) ? Lifetime::kUntilFinish : Lifetime::kCall;
      const Tensor slice = to_host(
          owned.view({owned.elements()}).slice(0, share.begin - owned_from, share.end - owned_from),
          model_->host());
      if (whole) return part.add_tensor(meta, bytes_of(slice), lasts);
      part.add_range(meta, share.begin, share.end, bytes_of(slice), lasts);
    };
    add(meta_of(p, {TensorKind::kMaster, ""}), state.read_owned_master(ctx, id),
        static_cast<bool>(state.masters()));
    if (!p.trainable) continue;
    const size_t place = updater_->place(id);
    for (const std::string& name : optimizer.states(place)) {
      Tensor value = optimizer.state_view(place, name);
      const bool view = static_cast<bool>(value);
      if (!view) {
        const optim::OwnedRange owned = optimizer.owned(place);
        value = host_context().workspace(DType::kFloat32, {owned.end - owned.begin});
        optimizer.read_state_range(place, name, owned.begin, owned.end, value.data<float>());
      }
      add(meta_of(p, state_key(name)), value, view);
    }
    if (accumulated_ > 0) {
      TensorMeta meta = meta_of(p, {TensorKind::kOptimizer, kGradientState});
      meta.dtype = state.accumulation_type();
      add(meta, state.owned_gradient(id), true);
    }
  }
}

void Engine::save_counters(PartWriter& part) {
  models::describe_model(*model_, part);
  part.set_json("ds_config", config_.resolved());
  part.set_json("rate_config", rate_config(config_));
  part.set_json("updater", updater_->save());
  part.set_int("random.seed", static_cast<int64_t>(config_.seed));
  part.set_int("accumulation.micro_batches", accumulated_);
  part.set_double("accumulation.loss_sum", losses_.value());
  part.set_int("accumulation.tokens", step_tokens_);
  part.set_json("client_state", client_state_);
  if (tokenizer_) part.set_text(models::kTokenizerState, tokenizer_->to_json());
}

void Engine::wait_for_save() {
  if (background_) background_->wait();
}

void Engine::load(const std::string& folder, const std::string& tag) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward of the caller is open");
  if (background_) background_->settle();
  const models::Model::Use use(*model_, models::Model::Use::Purpose::kLoad);
  if (!tag.empty()) return restore_tag(folder, tag);
  // Rank 0 searches for all.
  std::optional<CheckpointSearch> search;
  while (true) {
    std::string found;
    agree(context(), *comm_, "looking for a checkpoint", [&] {
      if (comm_->rank() != 0) return;
      if (!search) search.emplace(folder);
      const std::optional<CheckpointReader> reader = search->next();
      if (!reader) search->fail();
      found = reader->tag();
    });
    found = broadcast_text(context(), *comm_, found);
    try {
      return restore_tag(folder, found);
    } catch (const Error& error) {
      // What does not fit this engine is for the caller to know.
      if (error.code() != Code::kCorrupt && error.code() != Code::kIo) throw;
      if (search) search->pass_over(found, error.message());
    }
  }
}

void Engine::restore_tag(const std::string& folder, const std::string& tag) {
  std::optional<CheckpointReader> reader;
  agree(context(), *comm_, "opening a checkpoint",
        [&] { reader.emplace(CheckpointReader::open(folder, tag)); });
  restore(std::move(*reader));
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

// Bytes go straight to the tensor's memory where the host reaches it, else piece by piece.
void Engine::aim(TensorTarget& target, const Tensor& memory) {
  if (on_host(memory)) {
    target.out = writable_bytes_of(memory);
    return;
  }
  const Tensor flat = memory.view({memory.elements()});
  target.sink = [flat](uint64_t at, std::span<const std::byte> bytes) {
    const int64_t item = dtype_size(flat.dtype()), begin = static_cast<int64_t>(at) / item;
    copy_from_host(bytes.data(),
                   flat.slice(0, begin, begin + static_cast<int64_t>(bytes.size()) / item));
  };
}

// Where every tensor goes, or what this rank owns of it: to its own memory or, where that is not
// fp32, through its conversion.
std::vector<TensorTarget> Engine::restore_targets(const CheckpointReader& reader,
                                                  bool with_gradients) {
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  optim::Optimizer& optimizer = updater_->optimizer();
  const nn::ParameterSet& parameters = model_->parameters();
  std::vector<TensorTarget> targets;
  const auto add = [&](const TensorRecord& record, DType type, nn::ParamId id) -> auto& {
    const Shape& shape = parameters[id].shape;
    DS_CHECK(record.meta.dtype == type && Shape(record.meta.shape) == shape, Code::kInvalidArgument,
             "the checkpoint holds the ", record.meta.text(), " as ", dtype_name(record.meta.dtype),
             " ", Shape(record.meta.shape).text(), ", needed is ", dtype_name(type), " ",
             shape.text());
    TensorTarget& target = targets.emplace_back(TensorTarget{&record, {}, {}});
    const zero::OwnedPart part = state.layout().part(id);
    if (part.count < shape.elements()) target.range = {part.first, part.first + part.count};
    return target;
  };
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (const TensorRecord* record = reader.find(p.name, TensorKind::kMaster)) {
      TensorTarget& target = add(*record, DType::kFloat32, id);
      if (state.masters()) {
        aim(target, state.read_owned_master(ctx, id));
      } else {
        target.sink = [this, ctx, &state, id](uint64_t at, std::span<const std::byte> bytes) {
          state.write_owned_master(ctx, id, static_cast<int64_t>(at / sizeof(float)),
                                   operand(float_view(bytes)));
        };
      }
    }
    if (!p.trainable) continue;
    const size_t place = updater_->place(id);
    for (const std::string& name : optimizer.states(place)) {
      const StateKey key = state_key(name);
      TensorTarget& target = add(reader.tensor(p.name, key.kind, key.state), DType::kFloat32, id);
      if (const Tensor in_place = optimizer.state_view(place, name)) {
        aim(target, in_place);
      } else {
        const int64_t first = optimizer.owned(place).begin;
        target.sink = [&optimizer, place, name, first](uint64_t at,
                                                       std::span<const std::byte> bytes) {
          const int64_t begin = first + static_cast<int64_t>(at / sizeof(float));
          const auto count = static_cast<int64_t>(bytes.size() / sizeof(float));
          optimizer.write_state_range(place, name, begin, begin + count,
                                      reinterpret_cast<const float*>(bytes.data()));
        };
      }
    }
    if (with_gradients) {
      aim(add(reader.tensor(p.name, TensorKind::kOptimizer, kGradientState),
              state.accumulation_type(), id),
          state.owned_gradient(id));
    }
  }
  return targets;
}

Engine::Restored Engine::prepare_restore(const CheckpointReader& reader) {
  check_compatible(reader);
  Restored out;
  out.accumulated = reader.state_int("accumulation.micro_batches");
  DS_CHECK(out.accumulated >= 0 && out.accumulated < config_.batch.accumulation, Code::kConfig,
           "the checkpoint was saved after ", out.accumulated,
           " micro batches of an open step, which gradient_accumulation_steps ",
           config_.batch.accumulation, " cannot continue");
  if (out.accumulated > 0) model_->state().settle_gradients(context());
  out.targets = restore_targets(reader, out.accumulated > 0);
  restore_fp8_targets(reader, out);
  out.loss_sum = reader.state_double("accumulation.loss_sum");
  out.step_tokens = reader.state_int("accumulation.tokens");
  const bool same_rate = reader.state_json("rate_config") == rate_config(config_);
  out.updater =
      updater_->read(reader.has_state("updater") ? reader.state_json("updater")
                                                 : updater_of_version_0_1(reader, *updater_),
                     same_rate);
  out.client_state = reader.state_json("client_state");
  out.seed = reader.state_int("random.seed");
  out.tokenizer = tokenizer_;
  if (!out.tokenizer && reader.has_state(models::kTokenizerState)) {
    out.tokenizer = parse_tokenizer_json(reader.state_text(models::kTokenizerState),
                                         "the checkpoint's tokenizer");
  }
  const bool trained = progress_.micro_steps != loaded_micro_steps_;
  if (trained && model_->incomplete().empty()) reader.check_all(out.targets);
  return out;
}

// Everything but the bytes of the tensors is read and checked first, and also these when the engine
// has trained: then nothing was changed by what fails. After that they go to the engine's own
// memory, where a failure leaves a mixture, which the model is marked for until a load succeeds.
void Engine::restore(CheckpointReader reader) {
  constexpr const char* kWhat = "loading a checkpoint";
  reader.use_threads(&pool_);
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  Restored restored;
  agree(ctx, *comm_, kWhat, [&] { restored = prepare_restore(reader); });

  const std::string where = printable(reader.folder().string(), 300);
  const nn::ParameterSet& parameters = model_->parameters();
  overwritten_.resize(static_cast<size_t>(parameters.size()));
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (reader.find(parameters[id].name, TensorKind::kMaster) == nullptr) continue;
    overwritten_[static_cast<size_t>(id)] = true;
  }
  model_->set_incomplete(str_cat("the load of ", where, " did not come to its end"));
  try {
    state.hold_masters();
    const int turns = config_.zero.load_in_turn ? comm_->size() : 1;
    for (int turn = 0; turn < turns; ++turn) {
      agree(ctx, *comm_, kWhat, [&] {
        if (turns == 1 || turn == comm_->rank()) reader.read_all(restored.targets);
      });
    }
    agree(ctx, *comm_, kWhat, [&] {
      for (const auto& [id, saved] : restored.fp8) state.fp8()->restore(id, saved);
    });
  } catch (const Error& error) {
    model_->set_incomplete(str_cat("the load of ", where, " failed half way: ", error.message()));
    throw Error(error.code(), str_cat(error.message(),
                                      "; the engine is left without whole weights and can only "
                                      "load a checkpoint"));
  }
  updater_->restore(std::move(restored.updater));
  if (restored.accumulated == 0) state.clear_gradients(ctx);
  for (nn::ParamId id = 0; restored.accumulated > 0 && id < parameters.size(); ++id) {
    state.gradient_given(id);
  }
  state.drop_rounding_errors();
  state.masters_changed(ctx);
  if (restored.seed != static_cast<int64_t>(config_.seed)) {
    log_warning("engine", "the checkpoint was trained with seed ", restored.seed,
                ", this configuration says ", config_.seed,
                ": dropout will differ from an uninterrupted run");
  }
  const StepCounters& counters = reader.manifest().counters;
  progress_ = {counters.global_steps, counters.skipped_steps, counters.micro_steps,
               counters.global_samples, counters.global_tokens};
  loaded_micro_steps_ = progress_.micro_steps;
  accumulated_ = restored.accumulated;
  step_batches_ = restored.accumulated;
  step_samples_ = own_samples_ = 0;
  step_first_sample_ = accumulated_ * config_.batch.micro_batch * comm_->size();
  losses_.reset(restored.loss_sum);
  step_tokens_ = restored.step_tokens;
  client_state_ = std::move(restored.client_state);
  tokenizer_ = std::move(restored.tokenizer);
  overwritten_.clear();
  model_->set_incomplete({});
}

}  // namespace ds
