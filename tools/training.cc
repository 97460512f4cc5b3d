// `ds train`: one run, from the files to the last checkpoint.
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <optional>

#include "ds.hpp"
#include "failure.h"
#include "files.h"
#include "first_rank.h"
#include "format.h"
#include "model_files.h"
#include "rank_device.h"
#include "resume.h"
#include "run_description.h"
#include "run_lock.h"
#include "run_loop.h"
#include "signals.h"
#include "train_data.h"
#include "train_options.h"

namespace tool {
namespace {

constexpr int64_t kByteVocabulary = 256;

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
  void open_run();
  void open_model();
  libds::Model new_model(const std::string& path) const;
  void open_tokenizer();
  void keep_settings(const std::string& tokenizer) const;
  std::string engine_options() const;
  void open_engine();
  void open_data();
  void describe() const;
  Json run_description() const;
  void lock_save_folder();

  // Of the group that this process was launched in, alone when it was not.
  libds::Comm comm_;
  TrainOptions o_;
  bool first_;  // rank 0, which speaks and writes for all
  TrainData data_;
  LoadedRun loaded_;
  RunConfig config_;
  libds::Model model_;
  Json model_config_;
  libds::Tokenizer tokenizer_;
  libds::Engine engine_;
  libds::Dataset train_data_;
  libds::Dataset valid_data_;  // empty when there is none
  SampleChoice samples_;
  int64_t step_ = 0;
  std::optional<RunLock> lock_;  // of the folder that --save names
};

// A folder's weights, or fresh ones of a config.json; with the head that was asked for.
libds::Model Training::new_model(const std::string& path) const {
  const std::string& head = o_.fine_tune.head;
  if (folder_exists(path)) {
    if (head.empty()) return libds::Model::open(path);
    const Json options = {{"config", {{"architectures", Json::array({head})}}},
                          {"head_seed", config_.seed}};
    return libds::Model::open(path, options.dump());
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
      model_ = libds::Model::open(loaded_.checkpoint);
    } catch (const libds::Error& error) {
      if (error.status() != DS_ERR_NOT_FOUND) throw;
      throw Failure(plain_message(error) +
                    ". Here: repeat --model and what said which parameters train (--lora, "
                    "--freeze, ...) beside --load");
    }
  }
  model_config_ = parse_json(model_.config(), "the model's configuration");
  if (!model_config_.is_object()) {
    throw Failure((o_.model.empty() ? loaded_.checkpoint : o_.model) +
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

// The tokenizer of the option, else that of the checkpoint or of the model's folder, else bytes for
// a new model or a vocabulary of 256: weights that others trained read text in their own way. Token
// files need none.
void Training::open_tokenizer() {
  std::string source = o_.tokenizer;
  if (!source.empty()) {
    tokenizer_ = tool::open_tokenizer(source);
  } else {
    for (const std::string& folder : {loaded_.checkpoint, o_.model}) {
      if (tokenizer_ || folder.empty() || !folder_exists(folder)) continue;
      source = folder;
      tokenizer_ = find_tokenizer(folder);
    }
  }
  const int64_t room = model_config_.value("vocab_size", int64_t{0});
  if (!tokenizer_ && !data_.is_tokens()) {
    const std::string& weights = o_.model.empty() ? loaded_.checkpoint : o_.model;
    if (folder_exists(weights) && room != kByteVocabulary) {
      throw Failure(
          format("%s holds no tokenizer and its vocabulary is %lld, not bytes: say which with "
                 "--tokenizer (--tokenizer bytes reads text as bytes all the same)",
                 weights.c_str(), static_cast<long long>(room)));
    }
    tokenizer_ = libds::Tokenizer::bytes();
    source = "bytes";
  }
  keep_settings(source);
  if (!tokenizer_) return;
  const int64_t tokens = tokenizer_.vocab_size();
  if (room < tokens) {
    throw Failure(
        format("the model's vocab_size is %lld, but the tokenizer (%s) has %lld tokens: "
               "raise vocab_size in the model's config.json or train a smaller tokenizer",
               static_cast<long long>(room), source.c_str(), static_cast<long long>(tokens)));
  }
}

// What the folders say of generation and of the tokenizer goes with the run, for ds export.
void Training::keep_settings(const std::string& tokenizer) const {
  if (o_.save.empty() || !first_) return;
  const std::string& model = o_.model.empty() ? loaded_.checkpoint : o_.model;
  if (folder_exists(model)) copy_settings(model, o_.save, model_settings());
  if (folder_exists(tokenizer) || file_exists(tokenizer)) {
    copy_settings(tokenizer, o_.save, tokenizer_settings());
  }
}

// How long samples will be, where that is known before the engine is there: what they need is
// planned then.
std::string Training::engine_options() const {
  Json options = parse_json(config_.options, "options of the engine");
  const int64_t otherwise = o_.load.empty() ? model_positions(model_config_) : 0;
  const int64_t length = o_.sequence_length.value_or(data_.sequence_length().value_or(otherwise));
  if (length > 0) options["set"]["/memory_plan/sequence_length"] = length;
  return options.dump();
}

void Training::open_engine() {
  try {
    engine_ = libds::Engine(config_.text, model_, &comm_, engine_options());
  } catch (const libds::Error& error) {
    if (error.status() != DS_ERR_CONFIG || o_.config.path.empty()) throw;
    throw Failure(o_.config.path + ": " + plain_message(error));
  }
  if (!o_.load.empty()) load_checkpoint(engine_, loaded_, o_);
  step_ = engine_.global_step();
  if (tokenizer_) engine_.set_tokenizer(&tokenizer_);
}

void Training::open_data() {
  const libds::Tokenizer* tokenizer = tokenizer_ ? &tokenizer_ : nullptr;
  train_data_ =
      data_.open("train", samples_.sequence_length, samples_.split, samples_.seed, tokenizer);
  engine_.set_dataset(&train_data_);
  if (o_.eval_interval == 0) return;
  if (!o_.valid_data.empty() || !o_.valid_spec.empty()) {
    valid_data_ =
        TrainData(o_.valid_data, o_.valid_spec)
            .open("train", samples_.sequence_length, kWholeSplit, samples_.seed, tokenizer);
    return;
  }
  try {
    valid_data_ =
        data_.open("valid", samples_.sequence_length, samples_.split, samples_.seed, tokenizer);
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
  std::cerr << "; " << train_data_.size() << " training samples of " << samples_.sequence_length
            << " tokens, ";
  if (valid_data_) std::cerr << valid_data_.size() << " for validation, ";
  std::cerr << "batch " << batch << ", seed " << samples_.seed << "\n"
            << describe_settings(resolved["config"], model_config_) << "\n";
  if (step_ > 0) std::cerr << "loaded " << loaded_.checkpoint << " at step " << step_ << "\n";
}

// What `ds view` shows beside the record of the steps.
Json Training::run_description() const {
  if (o_.metrics.empty()) return {};
  const ParameterCounts counts = count_parameters(model_);
  std::error_code ignored;
  return {{"format", 1},
          {"ds", ds_version()},
          {"started", utc_text(std::time(nullptr))},
          {"from_step", step_},
          {"to_step", o_.steps},
          {"ranks", comm_.size()},
          {"device", model_.device()},
          {"save", o_.save.empty() ? "" : std::filesystem::absolute(o_.save, ignored).string()},
          {"data", o_.data.empty() ? o_.data_spec : o_.data},
          {"seed", samples_.seed},
          {"split", samples_.split},
          {"sequence_length", samples_.sequence_length},
          {"training_samples", train_data_.size()},
          {"parameters", counts.all},
          {"trained_parameters", counts.trained},
          {"model", model_config_},
          {"configuration", parse_json(engine_.config(), "the engine's configuration")}};
}

// Before anything is computed: no other run saves there, and it can be written.
void Training::lock_save_folder() {
  if (o_.save.empty()) return;
  on_first_rank(comm_, [&] { lock_.emplace(o_.save); });
}

// Of a damaged checkpoint the one before is taken, as the library does: a job that restarts by
// itself must not fail for ever.
void Training::open_run() {
  loaded_ = find_checkpoint(o_);
  lock_save_folder();
  check_save_folder(o_, loaded_);
  while (true) {
    ConfigOptions how = o_.config;
    how.resumed = loaded_.config;
    how.resumed_seed = loaded_.seed;
    how.steps = o_.steps;
    how.world = comm_.size();
    how.device = o_.device;
    config_ = load_config(how);
    try {
      open_model();
      open_tokenizer();
      open_engine();
      return;
    } catch (const libds::Error& error) {
      std::optional<LoadedRun> other = stand_in(o_, loaded_, error, first_);
      if (!other) throw;
      engine_ = {};
      model_ = {};
      tokenizer_ = {};
      loaded_ = std::move(*other);
    }
  }
}

int Training::run() {
  open_run();
  samples_ = recall_run(engine_, o_, data_, model_config_, config_.seed);
  open_data();
  describe();
  const Json resolved = parse_json(engine_.config(), "the engine's configuration").at("config");
  const bool once = resolved.at("dataloader_type") == "single";
  const RunData data{valid_data_ ? &valid_data_ : nullptr, samples_.sequence_length,
                     once ? train_data_.size() : 0};
  return RunLoop(o_, comm_, engine_, model_, data, run_description()).run();
}

}  // namespace

int run_training(const TrainOptions& options) {
  const QuietSignals quiet;
  TrainOptions resolved = options;
  resolved.device = resolved_device(options.device);
  Training training(resolved);
  const int status = training.run();
  training.leave();
  // A reader that went away before the end is no failure of the training.
  std::cout.flush();
  if (!std::cout && errno == EPIPE) std::cout.clear();
  return status;
}

}  // namespace tool
