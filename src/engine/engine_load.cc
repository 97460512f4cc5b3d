// Loading an engine: which checkpoint, what it takes over, and what it warns of.
#include <cmath>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/background_save.h"
#include "checkpoint/reader.h"
#include "engine/agreement.h"
#include "engine/engine.h"
#include "engine/resume_differences.h"
#include "engine/saved_names.h"
#include "ops/elementwise.h"

namespace ds {
namespace {

Json member(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : Json();
}

Json saved_json(const CheckpointReader& reader, const char* name) {
  return reader.has_state(name) ? reader.state_json(name) : Json();
}

// Version 0.1 had Adam and one rate.
Json updater_of_version_0_1(const CheckpointReader& reader, const Updater& updater) {
  Json saved = updater.save();
  saved["steps"] = saved["schedule_steps"] = reader.state_int("optimizer.steps");
  saved["rates"] = {reader.state_double("optimizer.lr")};
  return saved;
}

// Whether the saved loss scale was a dynamic one's, which others cannot go on with.
bool saved_scale_moves(const Json& rate_config) {
  const Json fp16 = member(rate_config, "fp16");
  return member(fp16, "enabled") == true && member(fp16, "loss_scale") == 0.0;
}

}  // namespace

// When these parts of the configuration are unchanged, a resumed run continues with the saved
// learning rate, else with what the new configuration says. The loss scale is a matter of "fp16"
// alone.
Json Engine::rate_config() const {
  const Json& all = config_.resolved();
  return {{"optimizer", all.value("optimizer", Json())},
          {"scheduler", all.value("scheduler", Json())},
          {"fp16", all.value("fp16", Json())}};
}

void Engine::load(const std::string& folder, const std::string& tag, const LoadOptions& options) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward of the caller is open");
  if (background_) background_->join();
  // The checkpoint is there when rank 0 has it, for those who read it themselves.
  if (saving_together_) agree(context(), *comm_, "waiting for a save", [] {});
  const models::Model::Use use(*model_, models::Model::Use::Purpose::kLoad);
  if (!tag.empty()) {
    const std::string first = broadcast_text(context(), *comm_, tag);
    agree(context(), *comm_, "choosing the tag", [&] {
      DS_CHECK(tag == first, Code::kInvalidArgument, "rank ", comm_->rank(), " loads \"",
               printable(tag), "\" and rank 0 \"", printable(first),
               "\"; give every rank the same tag");
    });
    return restore_tag(folder, tag, options);
  }
  // Rank 0 searches for all.
  std::optional<CheckpointSearch> search;
  while (true) {
    std::string found;
    agree(context(), *comm_, "looking for a checkpoint", [&] {
      if (comm_->rank() != 0) return;
      if (!search) search.emplace(folder);
      const std::optional<CheckpointReader> reader = search->next();
      // Damaged ones are not the same as none.
      if (!reader && options.may_be_missing && search->skipped().empty()) return;
      if (!reader) search->fail();
      found = reader->tag();
    });
    found = broadcast_text(context(), *comm_, found);
    if (found.empty()) return;
    try {
      return restore_tag(folder, found, options);
    } catch (const Error& error) {
      // What does not fit this engine is for the caller to know.
      if (error.code() != Code::kCorrupt && error.code() != Code::kIo) throw;
      if (search) search->pass_over(found, error.message());
    }
  }
}

void Engine::restore_tag(const std::string& folder, const std::string& tag,
                         const LoadOptions& options) {
  std::optional<CheckpointReader> reader;
  agree(context(), *comm_, "opening a checkpoint",
        [&] { reader.emplace(CheckpointReader::open(folder, tag)); });
  restore(std::move(*reader), options);
}

// Refused by a strict load, told by others.
void Engine::compare_settings(const CheckpointReader& reader, const LoadOptions& options) const {
  const RunSettings before{saved_json(reader, saved::kConfig), reader.manifest().topology.data};
  std::vector<std::string> differences =
      resume_differences(before, {config_.resolved(), comm_->size()});
  if (dataset_) {
    const std::string data =
        dataset_difference(saved_json(reader, saved::kDataset), describe_dataset(*dataset_));
    if (!data.empty()) differences.push_back(data);
  }
  if (differences.empty()) return;
  const std::string where = printable(reader.folder().string(), 300);
  DS_CHECK(!options.strict, Code::kConfig, "the run that saved ", where,
           " had other settings: ", ds::join(differences, "; "));
  if (comm_->rank() != 0) return;
  for (const std::string& difference : differences) {
    log_warning("engine", "the run that saved ", where, " had other settings: ", difference);
  }
}

// The open step as this rank goes on with it. Of other ranks than it was saved with, every one has
// the mean loss, and the first all tokens.
Engine::RankShare Engine::restored_share(const CheckpointReader& reader,
                                         int64_t& all_tokens) const {
  RankShare out{reader.state_double(saved::kLossSum), reader.state_int(saved::kTokens),
                reader.state_int(saved::kMicroBatches)};
  // Before version 0.4 every micro batch had a loss.
  if (reader.has_state(saved::kLosses)) out.losses = reader.state_int(saved::kLosses);
  all_tokens = out.tokens;
  if (!reader.has_state(saved::kRanks)) return out;
  const Json ranks = reader.state_json(saved::kRanks);
  const auto number = [&](const Json& share, const char* key) {
    const Json value = member(share, key);
    DS_CHECK(value.is_number() && std::isfinite(value.get<double>()), Code::kCorrupt,
             "the checkpoint's open step has a rank without ", key);
    return value.get<double>();
  };
  DS_CHECK(ranks.is_array() && ranks.size() <= 1 << 20, Code::kCorrupt,
           "the checkpoint's open step names no ranks");
  all_tokens = 0;
  for (const Json& share : ranks) {
    const double tokens = number(share, "tokens");
    DS_CHECK(tokens >= 0 && tokens < 0x1p40, Code::kCorrupt, "the checkpoint's open step counts ",
             tokens, " tokens");
    all_tokens += static_cast<int64_t>(tokens);
  }
  if (ranks.size() != static_cast<size_t>(comm_->size())) {
    out.tokens = comm_->rank() == 0 ? all_tokens : 0;
    return out;
  }
  const Json& own = ranks[static_cast<size_t>(comm_->rank())];
  // JSON has no NaN and no infinity, which a loss may be.
  const bool finite = !member(own, "loss_sum").is_null();
  return {finite ? number(own, "loss_sum") : std::nan(""),
          static_cast<int64_t>(number(own, "tokens")),
          own.contains("losses") ? static_cast<int64_t>(number(own, "losses")) : out.losses};
}

// Gradients of an open step carry the loss scale and 1 / gradient_accumulation_steps of the run
// that saved them; the rest of the step has this run's.
double Engine::gradient_factor(const CheckpointReader& reader, const Updater::Saved& updater,
                               int64_t accumulated, int64_t consumed) const {
  const Json before = member(saved_json(reader, saved::kConfig), "gradient_accumulation_steps");
  BatchConfig batch = config_.batch;
  if (config_.batch_ramp_up) batch.set_train_batch(config_.batch_ramp_up->size_after(consumed));
  const int64_t now = batch.accumulation;
  int64_t then = before.is_number_integer() ? before.get<int64_t>() : now;
  if (reader.has_state(saved::kRampedUp)) then = reader.state_int(saved::kRampedUp);
  DS_CHECK(accumulated < now && then > 0, Code::kConfig, "the checkpoint was saved after ",
           accumulated, " of the ", then,
           " micro batches of a step, which gradient_accumulation_steps ", now,
           " cannot continue; raise it above ", accumulated,
           " for this step, or leave the optimizer state out");
  DS_CHECK(then == now || model_->has_architecture(), Code::kConfig,
           "the checkpoint was saved after ", accumulated, " of the ", then,
           " micro batches of a step, and gradient_accumulation_steps is ", now,
           " now: what gradients of the caller's own were divided by is not known, so they cannot "
           "be continued; finish the step with ",
           then, ", or leave the optimizer state out");
  return updater.scaler.scale() / updater.gradient_scale * static_cast<double>(then) /
         static_cast<double>(now);
}

// Nothing of the engine changes here.
Engine::Restored Engine::prepare_restore(const CheckpointReader& reader,
                                         const LoadOptions& options) {
  check_compatible(reader, options);
  Restored out;
  if (!options.module_only) {
    compare_settings(reader, options);
    const Json saved_rates = reader.state_json(saved::kRateConfig), rates = rate_config();
    const auto same = [&](const char* key) {
      return member(saved_rates, key) == member(rates, key);
    };
    const Updater::Rules rules{same("optimizer") && same("scheduler"),
                               saved_scale_moves(saved_rates), options.optimizer_states,
                               options.schedule};
    out.updater = updater_->read(reader.has_state(saved::kUpdater)
                                     ? reader.state_json(saved::kUpdater)
                                     : updater_of_version_0_1(reader, *updater_),
                                 rules);
    out.accumulated = reader.state_int(saved::kMicroBatches);
    DS_CHECK(out.accumulated >= 0, Code::kCorrupt, "the checkpoint counts ", out.accumulated,
             " micro batches of an open step");
    const StepCounters& counters = reader.manifest().counters;
    out.progress = {counters.global_steps, counters.skipped_steps, counters.micro_steps,
                    counters.global_samples, counters.global_tokens};
    keep_open_step(reader, options, out);
    out.client_state = reader.state_json(saved::kClientState);
    out.blobs = SavedBlobs::load(reader);
    out.dataset = saved_json(reader, saved::kDataset);
  }
  if (out.accumulated > 0) model_->state().materialize_gradients(context());
  out.targets = restore_targets(reader, options, out.accumulated > 0);
  if (takes_states(options)) restore_fp8_targets(reader, out);
  out.tokenizer = tokenizer_;
  if (!out.tokenizer && reader.has_state(models::kTokenizerState)) {
    out.tokenizer = parse_tokenizer_json(reader.state_text(models::kTokenizerState),
                                         "the checkpoint's tokenizer");
  }
  const bool trained = progress_.micro_steps != loaded_micro_steps_;
  if (trained && model_->incomplete().empty()) reader.check_all(out.targets);
  return out;
}

// The micro batches of an open step go on only together with all of their gradients.
void Engine::keep_open_step(const CheckpointReader& reader, const LoadOptions& options,
                            Restored& out) const {
  if (out.accumulated == 0) return;
  const nn::ParameterSet& parameters = model_->parameters();
  bool whole = options.optimizer_states;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    whole &= !parameters[id].trainable ||
             reader.find(parameters[id].name, TensorKind::kMaster) != nullptr;
  }
  if (!whole) {
    if (comm_->rank() == 0) {
      log_warning("engine", "the checkpoint was saved after ", out.accumulated,
                  " micro batches of a step, whose gradients are not loaded: the step is given up");
    }
    out.accumulated = 0;
    return;
  }
  // Version 0.4 and earlier do not say; their random numbers went by micro steps anyway.
  out.samples = reader.has_state(saved::kSamples)
                    ? reader.state_int(saved::kSamples)
                    : out.accumulated * config_.batch.micro_batch * comm_->size();
  DS_CHECK(out.samples >= 0, Code::kCorrupt, "the checkpoint's open step counts ", out.samples,
           " samples");
  out.gradient_factor =
      gradient_factor(reader, out.updater, out.accumulated, out.progress.samples - out.samples);
  int64_t all_tokens = 0;
  out.share = restored_share(reader, all_tokens);
  out.progress.tokens += out.share.tokens - all_tokens;
}

// Reads so much at a time that a caller can watch and end a load, and that the disk never notices.
void Engine::read_targets(const CheckpointReader& reader, std::span<const TensorTarget> targets) {
  constexpr int64_t kPartBytes = int64_t{1} << 29;
  const auto bytes = [](const TensorTarget& target) {
    const TensorMeta& meta = target.tensor->meta;
    const int64_t elements =
        target.range ? target.range->end - target.range->begin : Shape(meta.shape).elements();
    return elements * dtype_size(meta.dtype);
  };
  int64_t total = 0, done = 0;
  for (const TensorTarget& target : targets) total += bytes(target);
  CallControl::Call call(control_, "load", total);
  while (!targets.empty()) {
    call.next(done);
    size_t count = 0;
    for (int64_t part = 0; count < targets.size() && part < kPartBytes; ++count) {
      part += bytes(targets[count]);
      done += bytes(targets[count]);
    }
    reader.read_all(targets.first(count));
    targets = targets.subspan(count);
  }
}

// Everything but the bytes of the tensors is read and checked first, and also these when the engine
// has trained: then nothing was changed by what fails. After that they go to the engine's own
// memory, where a failure leaves a mixture, which the model is marked for until a load succeeds.
void Engine::restore(CheckpointReader reader, const LoadOptions& options) {
  constexpr const char* kWhat = "loading a checkpoint";
  reader.use_threads(&pool_);
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  Restored restored;
  agree(ctx, *comm_, kWhat, [&] { restored = prepare_restore(reader, options); });

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
        if (turns == 1 || turn == comm_->rank()) read_targets(reader, restored.targets);
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
  restore_gradients(restored);
  state.drop_rounding_errors();
  state.masters_changed(ctx);
  restore_counters(std::move(restored), reader, options);
  overwritten_.clear();
  model_->set_incomplete({});
}

void Engine::restore_gradients(const Restored& restored) {
  zero::ParameterState& state = model_->state();
  if (restored.accumulated == 0) return state.clear_gradients(context());
  const OpContext home = state.state_context(context());
  const nn::ParameterSet& parameters = model_->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (!parameters[id].trainable) continue;
    state.gradient_given(id);
    if (restored.gradient_factor == 1) continue;
    Tensor gradient = state.owned_gradient(id);
    if (gradient.elements() == 0) continue;
    ops::scale(home, gradient, static_cast<float>(restored.gradient_factor), gradient);
  }
}

void Engine::restore_counters(Restored restored, const CheckpointReader& reader,
                              const LoadOptions& options) {
  accumulated_ = step_batches_ = restored.accumulated;
  step_samples_ = own_samples_ = 0;
  step_first_sample_ = restored.samples;
  losses_.reset(restored.share.loss_sum, restored.share.losses);
  step_tokens_ = restored.share.tokens;
  tokenizer_ = std::move(restored.tokenizer);
  if (!options.module_only) {
    updater_->restore(std::move(restored.updater));
    progress_ = restored.progress;
    client_state_ = std::move(restored.client_state);
    blobs_ = std::move(restored.blobs);
    loaded_dataset_ = std::move(restored.dataset);
    strict_dataset_ = options.strict;
    if (!reader.manifest().run.empty()) run_id_ = reader.manifest().run;
    checked_folder_.clear();
  }
  follow_ramp_up();
  loaded_micro_steps_ = progress_.micro_steps;
  model_->set_step_open(accumulated_ > 0 || fetched_count_ > 0 || gathered_count_ > 0);
}

}  // namespace ds
