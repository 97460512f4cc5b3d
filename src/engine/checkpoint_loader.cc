#include "engine/checkpoint_loader.h"

#include <optional>
#include <utility>

#include "base/log.h"
#include "base/system_memory.h"
#include "base/text.h"
#include "checkpoint/reader.h"
#include "engine/agreement.h"
#include "engine/caller_state.h"
#include "engine/checkpoint_saver.h"
#include "engine/data_feed.h"
#include "engine/fp8_steps.h"
#include "engine/load_parts.h"
#include "engine/load_protection.h"
#include "engine/open_step.h"
#include "engine/parameter_scopes.h"
#include "engine/rate_config.h"
#include "engine/restore_targets.h"
#include "engine/resume_differences.h"
#include "engine/run_context.h"
#include "engine/saved_json.h"
#include "engine/saved_names.h"
#include "engine/saved_step.h"
#include "engine/updater.h"
#include "tokenizer/tokenizer.h"
#include "zero/gradient_values.h"

namespace ds {

// What a checkpoint holds besides the bytes of tensors, checked.
struct CheckpointLoader::Restored {
  SavedStep step;
  std::vector<TensorTarget> targets;
  std::vector<SavedFp8> fp8;
  Progress progress;
  Updater::Saved updater;
  Json client_state;
  SavedBlobs blobs;
  Json dataset;  // as describe_dataset gave it
  std::shared_ptr<const Tokenizer> tokenizer;
};

namespace {

constexpr const char* kLoading = "loading a checkpoint";

// Version 0.1 had Adam and one rate.
Json updater_of_version_0_1(const CheckpointReader& reader, const Updater& updater) {
  Json saved = updater.save();
  saved["steps"] = saved["schedule_steps"] = reader.state_int("optimizer.steps");
  saved["rates"] = {reader.state_double("optimizer.lr")};
  return saved;
}

// Whether the saved loss scale was a dynamic one's, which others cannot go on with.
bool saved_scale_moves(const Json& rate_config) {
  const Json fp16 = json_member(rate_config, "fp16");
  return json_member(fp16, "enabled") == true && json_member(fp16, "loss_scale") == 0.0;
}

}  // namespace

CheckpointLoader::CheckpointLoader(const CheckpointedRun& of, CheckpointSaver& saver,
                                   const ParameterScopes& scopes)
    : run_(of.run),
      open_(of.open),
      updater_(of.updater),
      feed_(of.feed),
      caller_(of.caller),
      control_(of.control),
      saver_(saver),
      scopes_(scopes) {}

void CheckpointLoader::load(const std::string& folder, const std::string& tag,
                            const LoadOptions& options) {
  DS_CHECK(open_.phase == OpenStep::Phase::kIdle, Code::kState,
           "a forward or backward of the caller is open");
  saver_.wait_before_load();
  const models::Model::Use use(*run_.model, models::Model::Use::Purpose::kLoad);
  if (!tag.empty()) {
    const std::string first = broadcast_text(run_.context(), run_.world(), tag);
    agree(run_.context(), run_.world(), "choosing the tag", [&] {
      DS_CHECK(tag == first, Code::kInvalidArgument, "rank ", run_.mesh.rank(), " loads \"",
               printable(tag), "\" and rank 0 \"", printable(first),
               "\"; give every rank the same tag");
    });
    return restore_tag(folder, tag, options);
  }
  load_newest(folder, options);
}

// Rank 0 searches for all.
void CheckpointLoader::load_newest(const std::string& folder, const LoadOptions& options) {
  std::optional<CheckpointSearch> search;
  while (true) {
    std::string found;
    agree(run_.context(), run_.world(), "looking for a checkpoint", [&] {
      if (!run_.first_rank()) return;
      if (!search) search.emplace(folder);
      const std::optional<CheckpointReader> reader = search->next();
      // Damaged ones are not the same as none.
      if (!reader && options.may_be_missing && search->skipped().empty()) return;
      if (!reader) search->fail();
      found = reader->tag();
    });
    found = broadcast_text(run_.context(), run_.world(), found);
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

void CheckpointLoader::restore_tag(const std::string& folder, const std::string& tag,
                                   const LoadOptions& options) {
  std::optional<CheckpointReader> reader;
  agree(run_.context(), run_.world(), "opening a checkpoint",
        [&] { reader.emplace(CheckpointReader::open(folder, tag)); });
  restore(std::move(*reader), options);
}

// Refused by a strict load, reported by others.
void CheckpointLoader::compare_settings(const CheckpointReader& reader,
                                        const LoadOptions& options) const {
  const RunSettings before{saved_json(reader, saved::kConfig), reader.manifest().topology.data};
  std::vector<std::string> differences =
      resume_differences(before, {run_.config.resolved(), run_.data_ranks()});
  if (const std::string data = feed_.difference(saved_json(reader, saved::kDataset));
      !data.empty()) {
    differences.push_back(data);
  }
  if (differences.empty()) return;
  const std::string where = printable(reader.folder().string(), 300);
  DS_CHECK(!options.strict, Code::kConfig, "the run that saved ", where,
           " had other settings: ", ds::join(differences, "; "));
  if (!run_.first_rank()) return;
  for (const std::string& difference : differences) {
    log_warning("engine", "the run that saved ", where, " had other settings: ", difference);
  }
}

// Nothing of the engine changes here.
CheckpointLoader::Restored CheckpointLoader::prepare(const CheckpointReader& reader,
                                                     const LoadOptions& options) {
  check_compatible(run_, reader, options, overwritten_);
  Restored out;
  if (!options.module_only) prepare_counters(reader, options, out);
  if (out.step.micro_batches > 0) run_.state->gradients().materialize(run_.context());
  out.targets =
      restore_targets(run_, updater_, reader,
                      {takes_states(options), out.step.micro_batches > 0, out.updater.optimizer});
  if (takes_states(options)) out.fp8 = fp8_targets(run_, reader, out.targets);
  out.tokenizer = caller_.tokenizer;
  if (!out.tokenizer && reader.has_state(models::kTokenizerState)) {
    out.tokenizer = parse_tokenizer_json(reader.state_text(models::kTokenizerState),
                                         "the checkpoint's tokenizer");
  }
  return out;
}

void CheckpointLoader::prepare_counters(const CheckpointReader& reader, const LoadOptions& options,
                                        Restored& out) {
  compare_settings(reader, options);
  const Json saved_rates = reader.state_json(saved::kRateConfig), rates = rate_config(run_.config);
  const auto same = [&](const char* key) {
    return json_member(saved_rates, key) == json_member(rates, key);
  };
  const Updater::Rules rules{same("optimizer") && same("scheduler"), saved_scale_moves(saved_rates),
                             options.optimizer_states, options.schedule};
  out.updater =
      updater_.read(reader.has_state(saved::kUpdater) ? reader.state_json(saved::kUpdater)
                                                      : updater_of_version_0_1(reader, updater_),
                    rules);
  const StepCounters& counters = reader.manifest().counters;
  out.progress = {counters.global_steps, counters.skipped_steps, counters.micro_steps,
                  counters.global_samples, counters.global_tokens};
  out.step = read_saved_step(run_, reader, out.updater, options.optimizer_states, out.progress);
  out.client_state = reader.state_json(saved::kClientState);
  out.blobs = SavedBlobs::load(reader);
  out.dataset = saved_json(reader, saved::kDataset);
}

// An engine that has trained has something to lose, unless every rank gives that up. Where ranks
// load in turns, an update is still to be applied, or some rank cannot keep what it overwrites, all
// bytes are checked beforehand, which reads them twice.
std::optional<LoadProtection> CheckpointLoader::protect(const CheckpointReader& reader,
                                                        const Restored& restored,
                                                        const LoadOptions& options) {
  const bool trained =
      open_.progress.steps != loaded_steps_ || open_.progress.micro_steps != loaded_micro_steps_;
  if (!trained || !run_.model->incomplete().empty()) return {};
  if (on_every_rank(run_.context(), run_.world(), kLoading, !options.restore_on_failure)) return {};
  const bool keeps = !run_.config.zero.pipeline_loading_checkpoint &&
                     !updater_.optimizer().update_waits() &&
                     LoadProtection::protects(restored.targets);
  if (!on_every_rank(run_.context(), run_.world(), kLoading, keeps)) {
    agree(run_.context(), run_.world(), kLoading, [&] { reader.check_all(restored.targets); });
    return {};
  }
  std::optional<LoadProtection> protection;
  agree(run_.context(), run_.world(), kLoading, [&] {
    const int64_t room = free_memory(read_system_memory());
    const int ranks = run_.world().topology().local_size;
    std::vector<std::span<std::byte>> at_hand;
    if (restored.step.micro_batches == 0) at_hand = run_.state->gradients().unused_memory();
    protection.emplace(restored.targets, std::move(at_hand), room < 0 ? room : room / ranks,
                       &run_.pool);
  });
  return protection;
}

void CheckpointLoader::read_in_turns(const CheckpointReader& reader, LoadParts& parts) {
  for (int turn = 0; turn < run_.mesh.size(); ++turn) {
    agree(run_.context(), run_.world(), kLoading, [&] {
      if (turn != run_.mesh.rank()) return;
      while (parts.next()) reader.read_all(parts.take());
      run_.state->arrays().flush_masters();
      updater_.optimizer().flush();
    });
  }
}

// With protection, first until every rank has checked all that it loads; what some have not read
// yet is overwritten after that, with nothing kept: a disk that fails then leaves a mixture.
void CheckpointLoader::read_together(const CheckpointReader& reader, LoadParts& parts,
                                     std::optional<LoadProtection>& protection) {
  const OpContext ctx = run_.context();
  const auto until = [&](const auto& done, const auto& part) {
    do {
      agree(ctx, run_.world(), kLoading, part);
    } while (!on_every_rank(ctx, run_.world(), kLoading, done()));
  };
  if (protection) {
    until([&] { return parts.open().empty(); }, [&] { protection->next(reader, parts); });
    if (on_every_rank(ctx, run_.world(), kLoading, parts.finished())) return;
    protection.reset();
  }
  until([&] { return parts.finished(); },
        [&] {
          if (parts.next()) reader.read_all(parts.take());
        });
}

void CheckpointLoader::mark_overwritten(const CheckpointReader& reader) {
  const nn::ParameterSet& parameters = run_.model->parameters();
  overwritten_.resize(static_cast<size_t>(parameters.size()));
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (reader.find(parameters[id].name, TensorKind::kMaster) == nullptr) continue;
    overwritten_[static_cast<size_t>(id)] = true;
  }
}

// Everything but the bytes of the tensors is read and checked first; these go straight to the
// engine's own memory. An engine that has trained is protected from damage there, see protect().
// What fails without that leaves a mixture, which the model is marked for until a load succeeds.
void CheckpointLoader::restore(CheckpointReader reader, const LoadOptions& options) {
  reader.use_threads(&run_.pool);
  const OpContext ctx = run_.context();
  zero::TrainState& state = *run_.state;
  Restored restored;
  agree(ctx, run_.world(), kLoading, [&] { restored = prepare(reader, options); });

  std::optional<LoadProtection> protection = protect(reader, restored, options);
  LoadParts parts(control_, restored.targets);
  agree(ctx, run_.world(), kLoading, [&] { parts.begin(); });

  const std::string where = printable(reader.folder().string(), 300);
  const std::vector<bool> overwritten_before = overwritten_;
  mark_overwritten(reader);
  run_.model->set_incomplete(str_cat("the load of ", where, " did not come to its end"));
  try {
    updater_.optimizer().begin_load();
    state.arrays().hold_masters();
    if (run_.config.zero.pipeline_loading_checkpoint) {
      read_in_turns(reader, parts);
    } else {
      read_together(reader, parts, protection);
    }
    protection.reset();
    agree(ctx, run_.world(), kLoading, [&] {
      state.arrays().flush_masters();
      updater_.optimizer().flush();
      restore_fp8(run_, restored.fp8);
    });
  } catch (const Error& error) {
    if (protection) {
      protection->put_back();
      overwritten_ = overwritten_before;
      run_.model->set_incomplete({});
      throw;
    }
    run_.model->set_incomplete(
        str_cat("the load of ", where, " failed half way: ", error.message()));
    throw Error(error.code(), str_cat(error.message(),
                                      "; the engine is left without whole weights and can only "
                                      "load a checkpoint"));
  }
  end_group_on_io_error(run_.world(), [&] {
    restore_gradients(restored);
    state.gradients().drop_rounding_errors();
    state.weights().follow_masters(ctx);
  });
  restore_counters(std::move(restored), reader, options);
  overwritten_.clear();
  run_.model->set_incomplete({});
}

void CheckpointLoader::restore_gradients(const Restored& restored) {
  zero::TrainState& state = *run_.state;
  if (restored.step.micro_batches == 0) return state.gradients().clear(run_.context());
  const nn::ParameterSet& parameters = run_.model->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (!parameters[id].trainable) continue;
    state.gradients().marks().set_given(id);
    if (restored.step.gradient_factor == 1 || !state.arrays().holds(id)) continue;
    zero::scale_owned_gradient(run_.context(), state.gradients(), id,
                               static_cast<float>(restored.step.gradient_factor));
  }
}

void CheckpointLoader::restore_counters(Restored restored, const CheckpointReader& reader,
                                        const LoadOptions& options) {
  open_.rewind();
  open_.micro_batches = open_.own_micro_batches = restored.step.micro_batches;
  open_.samples = open_.own_samples = 0;
  open_.first_sample = restored.step.samples;
  open_.losses.reset(restored.step.share.loss_sum, restored.step.share.losses);
  open_.label_losses.reset(restored.step.share.label_sum, restored.step.share.losses);
  open_.teacher_losses.reset(restored.step.share.teacher_sum, restored.step.share.losses);
  open_.tokens = restored.step.share.tokens;
  caller_.tokenizer = std::move(restored.tokenizer);
  if (!options.module_only) {
    updater_.restore(std::move(restored.updater));
    open_.progress = restored.progress;
    caller_.client_state = std::move(restored.client_state);
    caller_.blobs = std::move(restored.blobs);
    feed_.expect(std::move(restored.dataset), options.strict);
    saver_.continue_run(reader.manifest().run);
  }
  follow_ramp_up(run_.config, open_);
  loaded_steps_ = open_.progress.steps;
  loaded_micro_steps_ = open_.progress.micro_steps;
  run_.model->set_step_open(open_.micro_batches > 0 || scopes_.holds_any());
}

}  // namespace ds
