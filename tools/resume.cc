#include "resume.h"

#include <filesystem>
#include <iostream>

#include "ds.hpp"
#include "failure.h"
#include "files.h"
#include "fine_tuning.h"
#include "model_files.h"

namespace tool {
namespace {

constexpr const char* kDefaultSplit = "969,30,1";

// Which parameters train, for the next checkpoint. A loaded run keeps its own choice.
Json recall_adaptation(const TrainOptions& options, const Json& before) {
  const Json given = describe_adaptation(options.fine_tune);
  if (!options.resumes()) return given;
  const Json loaded = before.value("adaptation", Json::object());
  if (!given.empty() && given != loaded) {
    throw Failure("the loaded run chose what to train with " + loaded.dump() +
                  ", this command with " + given.dump() +
                  ": to begin anew from its weights, give them as --model instead of --load");
  }
  return loaded;
}

// The configuration of a saved run as this one begins with it: what belongs to the machine or
// follows from the number of ranks is left to this one.
std::string config_of(const Json& document) {
  Json config = document.value("config", Json());
  if (!config.is_object()) return {};
  for (const char* key : {"train_batch_size", "threads", "thread_affinity"}) config.erase(key);
  return config.dump();
}

// One checkpoint, the newest valid one without a tag.
LoadedRun describe(const TrainOptions& options, const std::string& folder, const std::string& tag) {
  LoadedRun run;
  const Json document =
      parse_json(libds::inspect_checkpoint(folder, tag), "the checkpoint's description");
  run.checkpoint = document.at("folder").get<std::string>();
  run.tag = document.at("tag").get<std::string>();
  if (document.at("run").is_string()) run.run = document.at("run").get<std::string>();
  const std::filesystem::path parent = std::filesystem::path(run.checkpoint).parent_path();
  run.folder = parent.empty() ? "." : parent.string();
  if (options.resumes()) run.config = config_of(document);
  for (const Json& state : document.value("state", Json::array())) {
    if (options.resumes() && state.value("name", std::string()) == "random.seed" &&
        state.contains("value")) {
      run.seed = state["value"].get<int64_t>();
    }
  }
  if (!options.tag.empty()) return run;
  for (const Json& other : document.at("tags")) {
    if (other != run.tag) run.others.push_back(other.get<std::string>());
  }
  return run;
}

}  // namespace

bool has_checkpoint(const std::string& folder) {
  try {
    static_cast<void>(libds::inspect_checkpoint(folder));
  } catch (const libds::Error& error) {
    return error.status() != DS_ERR_NOT_FOUND;
  }
  return true;
}

LoadedRun find_checkpoint(const TrainOptions& options) {
  if (options.load.empty()) return {};
  return describe(options, options.load, options.tag);
}

std::optional<LoadedRun> stand_in(const TrainOptions& options, const LoadedRun& damaged,
                                  const libds::Error& error, bool tell) {
  const std::string reason = plain_message(error);
  const bool about_it = reason.find(damaged.checkpoint) != std::string::npos;
  const bool damage = error.status() == DS_ERR_CORRUPT || (error.status() == DS_ERR_IO && about_it);
  if (!damage || damaged.checkpoint.empty() || (!options.model.empty() && !about_it)) {
    return std::nullopt;
  }
  std::vector<std::string> left = damaged.others;
  while (!left.empty()) {
    const std::string tag = std::move(left.back());
    left.pop_back();
    try {
      LoadedRun run = describe(options, damaged.folder, tag);
      run.others = left;
      if (tell) {
        std::cerr << "ds: warning: passing over " << damaged.checkpoint << ": " << reason
                  << "; going on from " << run.checkpoint << "\n";
      }
      return run;
    } catch (const libds::Error& other) {
      if (!tell) continue;
      std::cerr << "ds: warning: passing over " << tag << ": " << plain_message(other) << "\n";
    }
  }
  return std::nullopt;
}

void check_save_folder(const TrainOptions& options, const LoadedRun& loaded) {
  if (options.save.empty() || options.force || !folder_exists(options.save)) return;
  Json document;
  try {
    document = parse_json(libds::inspect_checkpoint(options.save), "the save folder's description");
  } catch (const libds::Error& error) {
    if (error.status() == DS_ERR_NOT_FOUND) return;  // no checkpoints
    throw Failure("--save: " + plain_message(error) +
                  ". --force saves there all the same, and a folder of its own is better");
  }
  std::string others;
  for (const auto& [tag, run] : document.at("runs").items()) {
    const std::string id = run.is_string() ? run.get<std::string>() : std::string();
    if (options.resumes() && (id.empty() || id == loaded.run)) continue;
    others += (others.empty() ? "" : ", ") + tag;
  }
  if (others.empty()) return;
  throw Failure("--save: " + options.save + " holds checkpoints of another run (" + others +
                "): go on with that run (--load " + options.save +
                "), choose another folder, or add --force to save among them");
}

void load_checkpoint(libds::Engine& engine, const LoadedRun& run, const TrainOptions& options) {
  const LoadParts& parts = options.load_parts;
  const Json how = {{"load_module_only", parts.weights_only},
                    {"load_module_strict", !parts.partial},
                    {"load_optimizer_states", !parts.no_optimizer},
                    {"load_lr_scheduler_states", !parts.no_schedule},
                    {"strict", parts.strict}};
  try {
    engine.load(run.folder, run.tag, how.dump());
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
  const bool whole = !options.valid_data.empty() || !options.valid_spec.empty();
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
