// `ds train`: one run, from the files to the last checkpoint.
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <optional>

#include "command.h"
#include "files.h"
#include "first_rank.h"
#include "format.h"
#include "model_files.h"
#include "rank_device.h"
#include "run_lock.h"
#include "run_loop.h"
#include "signals.h"
#include "train_data.h"
#include "train_options.h"

namespace tool {
namespace {

constexpr const char* kDefaultSplit = "969,30,1";
constexpr const char* kWholeSplit = "1,0,0";

class Training {
 public:
  explicit Training(const TrainOptions& options)
      : comm_(-1, -1, comm_config_on(options.device, options.comm_config)),
        o_(options),
        first_(comm_.rank() == 0),
        data_(options.data, options.data_spec) {
    if (first_) return;
    o_.quiet = true;
    o_.metrics.clear();
  }

  int run();
  // Nobody's memory or files go while another process still needs them.
  void leave() { comm_.finalize(); }

 private:
  void find_checkpoint();
  void open_model();
  libds::Model new_model(const std::string& path) const;
  void open_tokenizer();
  void open_engine();
  void load();
  void recall_run();
  Json recall_adaptation(const Json& before) const;
  void open_data();
  void describe() const;
  void lock_save_folder();

  // Of the group that this process was launched in, alone when it was not.
  libds::Comm comm_;
  TrainOptions o_;
  bool first_;  // rank 0, which speaks and writes for all
  TrainData data_;
  // The checkpoint that --load means: the folder of all, the tag, and the folder of the one.
  std::string load_folder_;
  std::string load_tag_;
  std::string loaded_checkpoint_;
  std::optional<int64_t> loaded_seed_;
  RunConfig config_;
  libds::Model model_;
  Json model_config_;
  libds::Tokenizer tokenizer_;
  libds::Engine engine_;
  libds::Dataset train_data_;
  libds::Dataset valid_data_;  // empty when there is none
  int64_t seed_ = 0;
  int64_t sequence_length_ = 0;
  std::string split_;
  int64_t step_ = 0;
  std::optional<RunLock> lock_;  // of the folder that --save names
};

// Settles once which checkpoint is loaded, so that weights, tokenizer and seed are of the same.
// --load may also name the folder of one checkpoint.
void Training::find_checkpoint() {
  if (o_.load.empty()) return;
  const Json document =
      parse_json(libds::inspect_checkpoint(o_.load, o_.tag), "the checkpoint's description");
  loaded_checkpoint_ = document.at("folder").get<std::string>();
  load_tag_ = document.at("tag").get<std::string>();
  const std::filesystem::path parent = std::filesystem::path(loaded_checkpoint_).parent_path();
  load_folder_ = parent.empty() ? "." : parent.string();
  for (const Json& state : document.value("state", Json::array())) {
    if (state.value("name", std::string()) == "random.seed" && state.contains("value")) {
      loaded_seed_ = state["value"].get<int64_t>();
    }
  }
}

// A folder's weights, or fresh ones of a config.json; with the head that was asked for.
libds::Model Training::new_model(const std::string& path) const {
  const std::string& head = o_.fine_tune.head;
  if (folder_exists(path)) {
    if (head.empty()) return libds::Model::open(path);
    const Json changes = {{"architectures", Json::array({head})}};
    return libds::Model::open_with(path, changes.dump(), config_.seed);
  }
  std::string text = read_text(path);
  if (!head.empty()) {
    Json config = parse_json(text, path);
    if (config.is_object()) config["architectures"] = Json::array({head});
    text = config.dump();
  }
  try {
    return libds::Model::create(text, config_.seed);
  } catch (const libds::Error& error) {
    throw Failure(path + ": " + plain_message(error));
  }
}

// Without --model a checkpoint gives weights, adapters and what is frozen, all as saved.
void Training::open_model() {
  if (!o_.model.empty()) {
    model_ = new_model(o_.model);
  } else {
    if (!o_.fine_tune.head.empty()) throw UsageError("--head needs --model");
    try {
      model_ = libds::Model::open(loaded_checkpoint_);
    } catch (const libds::Error& error) {
      if (error.status() != DS_ERR_NOT_FOUND) throw;
      throw Failure(plain_message(error) +
                    ". Here: repeat --model and what said which parameters train (--lora, "
                    "--freeze, ...) beside --load");
    }
  }
  model_config_ = parse_json(model_.config(), "the model's configuration");
  if (!model_config_.is_object()) {
    throw Failure((o_.model.empty() ? loaded_checkpoint_ : o_.model) +
                  " holds the parameters of a program that computes its own gradients: only that "
                  "program can train them");
  }
  if (!o_.model.empty()) adapt(model_, o_.fine_tune, config_.seed);
  if (count_parameters(model_).trained == 0) {
    throw Failure("all parameters are frozen: nothing would train (--unfreeze releases some)");
  }
  model_.set_device(rank_device(o_.device, comm_));
  if (!o_.adapter_out.empty()) {
    if (!has_adapters(model_)) {
      throw UsageError("--adapter-out: the model has no adapters; --lora adds them");
    }
    make_folder(o_.adapter_out);
  }
}

// The tokenizer of the option, else that of the checkpoint or of the model's folder, else bytes.
// Token files need none.
void Training::open_tokenizer() {
  std::string source = o_.tokenizer;
  if (!source.empty()) {
    tokenizer_ = libds::Tokenizer::open(source);
  } else {
    for (const std::string& folder : {loaded_checkpoint_, o_.model}) {
      if (tokenizer_ || folder.empty() || !folder_exists(folder)) continue;
      source = folder;
      tokenizer_ = find_tokenizer(folder);
    }
  }
  if (!tokenizer_ && !data_.is_tokens()) {
    tokenizer_ = libds::Tokenizer::bytes();
    source = "bytes";
  }
  if (!tokenizer_) return;
  const int64_t tokens = tokenizer_.vocab_size();
  const int64_t room = model_config_.value("vocab_size", int64_t{0});
  if (room < tokens) {
    throw Failure(
        format("the model's vocab_size is %lld, but the tokenizer (%s) has %lld tokens: "
               "raise vocab_size in the model's config.json or train a smaller tokenizer",
               static_cast<long long>(room), source.c_str(), static_cast<long long>(tokens)));
  }
}

void Training::open_engine() {
  try {
    engine_ = libds::Engine(config_.text, model_, &comm_);
  } catch (const libds::Error& error) {
    if (error.status() != DS_ERR_CONFIG || o_.config.path.empty()) throw;
    throw Failure(o_.config.path + ": " + plain_message(error));
  }
  if (!config_.understood) {
    throw Failure("the configuration " + o_.config.path + " must be one JSON object");
  }
  if (!o_.load.empty()) load();
  step_ = engine_.global_step();
  if (tokenizer_) engine_.set_tokenizer(&tokenizer_);
}

void Training::load() {
  try {
    engine_.load(load_folder_, load_tag_);
  } catch (const libds::Error& error) {
    const bool other_parameters =
        error.status() == DS_ERR_INVALID_ARGUMENT || error.status() == DS_ERR_NOT_FOUND;
    if (o_.model.empty() || !other_parameters) throw;
    throw Failure(plain_message(error) +
                  ". Beside --load, --model is needed only when the checkpoint leaves frozen "
                  "parameters out; then --lora, --freeze and --unfreeze must be those of the "
                  "loaded run");
  }
}

// Which parameters train, for the next checkpoint. A loaded run keeps its own choice.
Json Training::recall_adaptation(const Json& before) const {
  const Json given = describe_adaptation(o_.fine_tune);
  if (o_.load.empty()) return given;
  const Json loaded = before.value("adaptation", Json::object());
  if (!given.empty() && given != loaded) {
    throw Failure("the loaded run chose what to train with " + loaded.dump() +
                  ", this command with " + given.dump() +
                  ": to begin anew from its weights, give them as --model instead of --load");
  }
  return loaded;
}

// What the data depend on comes from the options, else from the run that is resumed, so that a
// resumed run sees the same samples.
void Training::recall_run() {
  const Json state = parse_json(engine_.client_state(), "the checkpoint's client state");
  const Json before = state.is_object() ? state.value("ds_train", Json::object()) : Json::object();
  if (!before.is_object()) throw Failure("the checkpoint's client state \"ds_train\" is no object");
  seed_ = config_.seed;
  const bool whole = !o_.valid_data.empty();
  split_ = o_.split
               ? *o_.split
               : data_.split().value_or(before.value("split", whole ? kWholeSplit : kDefaultSplit));
  sequence_length_ = o_.sequence_length.value_or(data_.sequence_length().value_or(
      before.value("sequence_length", model_positions(model_config_))));
  if (sequence_length_ <= 0) {
    throw UsageError("--sequence-length is required: the model's config.json names no positions");
  }

  Json now = {{"seed", seed_}, {"split", split_}, {"sequence_length", sequence_length_}};
  if (Json spec = data_.description(); !spec.is_null()) now["data_spec"] = std::move(spec);
  if (!before.empty()) {
    for (const auto& [key, value] : now.items()) {
      if (before.contains(key) && before[key] != value) {
        std::cerr << "ds: warning: the loaded run used " << key << " " << before[key]
                  << ", this one " << value << ": its samples differ from an uninterrupted run\n";
      }
    }
  }
  if (Json chosen = recall_adaptation(before); !chosen.empty()) now["adaptation"] = chosen;
  Json next = state.is_object() ? state : Json::object();
  next["ds_train"] = std::move(now);
  engine_.set_client_state(next.dump());
}

void Training::open_data() {
  const libds::Tokenizer* tokenizer = tokenizer_ ? &tokenizer_ : nullptr;
  train_data_ = data_.open("train", sequence_length_, split_, seed_, tokenizer);
  engine_.set_dataset(&train_data_);
  if (o_.eval_interval == 0) return;
  if (!o_.valid_data.empty()) {
    valid_data_ =
        TrainData(o_.valid_data, "").open("train", sequence_length_, kWholeSplit, seed_, tokenizer);
    return;
  }
  try {
    valid_data_ = data_.open("valid", sequence_length_, split_, seed_, tokenizer);
  } catch (const libds::Error& error) {
    // Too little text for a validation part is no reason not to train.
    if (error.status() != DS_ERR_CONFIG && error.status() != DS_ERR_INVALID_ARGUMENT) throw;
    if (!o_.quiet) std::cerr << "ds: note: no validation: " << plain_message(error) << "\n";
  }
}

void Training::describe() const {
  if (o_.quiet) return;
  const Json resolved = parse_json(engine_.config(), "the engine's configuration");
  const Json batch = resolved["config"].value("train_batch_size", Json());
  const ParameterCounts counts = count_parameters(model_);
  std::cerr << "model " << model_config_.value("model_type", std::string("?")) << ", "
            << format_count(static_cast<double>(counts.all)) << " parameters";
  if (counts.trained < counts.all) {
    std::cerr << ", " << format_count(static_cast<double>(counts.trained)) << " of them trained";
  }
  std::cerr << "; " << train_data_.size() << " training samples of " << sequence_length_
            << " tokens, ";
  if (valid_data_) std::cerr << valid_data_.size() << " for validation, ";
  std::cerr << "batch " << batch << ", seed " << seed_ << "\n";
  if (step_ > 0) std::cerr << "loaded " << loaded_checkpoint_ << " at step " << step_ << "\n";
}

// Before anything is computed: no other run saves there, and it can be written.
void Training::lock_save_folder() {
  if (o_.save.empty()) return;
  on_first_rank(comm_, [&] { lock_.emplace(o_.save); });
}

int Training::run() {
  find_checkpoint();
  ConfigOptions how = o_.config;
  how.resumed_seed = loaded_seed_;
  config_ = load_config(how);
  lock_save_folder();
  open_model();
  open_tokenizer();
  open_engine();
  recall_run();
  open_data();
  describe();
  return RunLoop(o_, comm_, engine_, model_, valid_data_ ? &valid_data_ : nullptr).run();
}

}  // namespace

int run_training(const TrainOptions& options) {
  const QuietSignals quiet;
  Training training(options);
  const int status = training.run();
  training.leave();
  // A reader that went away before the end is no failure of the training.
  std::cout.flush();
  if (!std::cout && errno == EPIPE) std::cout.clear();
  return status;
}

}  // namespace tool
