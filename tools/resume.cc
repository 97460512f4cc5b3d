#include "resume.h"

#include <filesystem>
#include <iostream>

#include "command.h"
#include "fine_tuning.h"
#include "model_files.h"

namespace tool {
namespace {

constexpr const char* kDefaultSplit = "969,30,1";

// Which parameters train, for the next checkpoint. A loaded run keeps its own choice.
Json recall_adaptation(const TrainOptions& options, const Json& before) {
  const Json given = describe_adaptation(options.fine_tune);
  if (options.load.empty()) return given;
  const Json loaded = before.value("adaptation", Json::object());
  if (!given.empty() && given != loaded) {
    throw Failure("the loaded run chose what to train with " + loaded.dump() +
                  ", this command with " + given.dump() +
                  ": to begin anew from its weights, give them as --model instead of --load");
  }
  return loaded;
}

}  // namespace

LoadedRun find_checkpoint(const TrainOptions& options) {
  LoadedRun run;
  if (options.load.empty()) return run;
  const Json document = parse_json(libds::inspect_checkpoint(options.load, options.tag),
                                   "the checkpoint's description");
  run.checkpoint = document.at("folder").get<std::string>();
  run.tag = document.at("tag").get<std::string>();
  const std::filesystem::path parent = std::filesystem::path(run.checkpoint).parent_path();
  run.folder = parent.empty() ? "." : parent.string();
  for (const Json& state : document.value("state", Json::array())) {
    if (state.value("name", std::string()) == "random.seed" && state.contains("value")) {
      run.seed = state["value"].get<int64_t>();
    }
  }
  return run;
}

void load_checkpoint(libds::Engine& engine, const LoadedRun& run, const TrainOptions& options) {
  try {
    engine.load(run.folder, run.tag);
  } catch (const libds::Error& error) {
    const bool other_parameters =
        error.status() == DS_ERR_INVALID_ARGUMENT || error.status() == DS_ERR_NOT_FOUND;
    if (options.model.empty() || !other_parameters) throw;
    throw Failure(plain_message(error) +
                  ". Beside --load, --model is needed only when the checkpoint leaves frozen "
                  "parameters out; then --lora, --freeze and --unfreeze must be those of the "
                  "loaded run");
  }
}

SampleChoice recall_run(libds::Engine& engine, const TrainOptions& options, const TrainData& data,
                        const Json& model_config, int64_t seed) {
  const Json state = parse_json(engine.client_state(), "the checkpoint's client state");
  const Json before = state.is_object() ? state.value("ds_train", Json::object()) : Json::object();
  if (!before.is_object()) throw Failure("the checkpoint's client state \"ds_train\" is no object");
  SampleChoice chosen;
  chosen.seed = seed;
  const bool whole = !options.valid_data.empty();
  chosen.split =
      options.split
          ? *options.split
          : data.split().value_or(before.value("split", whole ? kWholeSplit : kDefaultSplit));
  chosen.sequence_length = options.sequence_length.value_or(data.sequence_length().value_or(
      before.value("sequence_length", model_positions(model_config))));
  if (chosen.sequence_length <= 0) {
    throw UsageError("--sequence-length is required: the model's config.json names no positions");
  }

  Json now = {
      {"seed", chosen.seed}, {"split", chosen.split}, {"sequence_length", chosen.sequence_length}};
  if (Json spec = data.description(); !spec.is_null()) now["data_spec"] = std::move(spec);
  if (!before.empty()) {
    for (const auto& [key, value] : now.items()) {
      if (before.contains(key) && before[key] != value) {
        std::cerr << "ds: warning: the loaded run used " << key << " " << before[key]
                  << ", this one " << value << ": its samples differ from an uninterrupted run\n";
      }
    }
  }
  if (Json adaptation = recall_adaptation(options, before); !adaptation.empty()) {
    now["adaptation"] = adaptation;
  }
  Json next = state.is_object() ? state : Json::object();
  next["ds_train"] = std::move(now);
  engine.set_client_state(next.dump());
  return chosen;
}

}  // namespace tool
