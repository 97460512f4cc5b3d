// `ds train`: the options.
#include <algorithm>
#include <charconv>
#include <memory>

#include "command.h"
#include "inference_weights.h"
#include "resume.h"
#include "train_options.h"

namespace tool {
namespace {

// One to three shares; the library would pass over what comes after the third.
std::string check_split(std::string& text) {
  int shares = 0;
  for (size_t at = 0; at <= text.size(); ++shares) {
    const size_t end = std::min(text.find(',', at), text.size());
    double share = -1;
    const auto [read, error] = std::from_chars(text.data() + at, text.data() + end, share);
    if (error != std::errc() || read != text.data() + end || !(share >= 0)) {
      return "'" + text.substr(at, end - at) + "' is no share; write such as 969,30,1";
    }
    at = end + 1;
  }
  return shares > 3 ? "'" + text + "' has more than three shares" : std::string();
}

void add_what_to_train(CLI::App& sub, TrainOptions& o) {
  const char* group = "Model and data";
  sub.add_option("--model", o.model,
                 "config.json of a new model, or a folder with weights (Hugging Face or a "
                 "checkpoint); not needed with --load")
      ->type_name("CONFIG_OR_FOLDER")
      ->group(group);
  auto* data = sub.add_option("--data", o.data,
                              "text file, .jsonl file, or PREFIX of PREFIX.bin and PREFIX.idx")
                   ->type_name("FILE_OR_PREFIX")
                   ->group(group);
  sub.add_option("--data-spec", o.data_spec,
                 "instead of --data: a data set's specification as JSON (docs/data.md): blends, "
                 "packed fine-tuning examples, masked text")
      ->excludes(data)
      ->type_name("FILE.json")
      ->group(group);
  sub.add_option("--tokenizer", o.tokenizer,
                 "tokenizer.json, or a folder or checkpoint that holds one; default: that of the "
                 "loaded checkpoint or of --model's folder, else text is read as bytes")
      ->type_name("FILE")
      ->group(group);
  sub.add_option("--sequence-length", o.sequence_length,
                 "tokens per sample; default: the model's positions")
      ->check(at_least(1))
      ->group(group);
  sub.add_option("--split", o.split,
                 "shares of --data for training, validation, test; default 969,30,1")
      ->type_name("A,B,C")
      ->check(CLI::Validator(check_split, "SPLIT"))
      ->group(group);
  sub.add_option("--valid-data", o.valid_data,
                 "validate on this data; --data is then used for training as a whole")
      ->type_name("FILE_OR_PREFIX")
      ->group(group);
  sub.add_option("--valid-data-spec", o.valid_spec,
                 "instead of --valid-data: a specification, such as a blend of its own")
      ->excludes("--valid-data")
      ->type_name("FILE.json")
      ->group(group);
  sub.add_option("--dataloader-type", o.config.dataloader_type,
                 "passes: the data again and again; single: once, in order; cyclic: in a new order "
                 "in every pass; default: the configuration's dataloader_type")
      ->check(CLI::IsMember({"passes", "single", "cyclic"}))
      ->type_name("NAME")
      ->group(group);
}

void add_how_to_train(CLI::App& sub, TrainOptions& o) {
  const char* group = "Training";
  sub.add_option(
         "--config", o.config.path,
         "DeepSpeed configuration (docs/configuration.md); default: the loaded run's, else micro "
         "batch 8, AdamW, lr 3e-4, clipping 1")
      ->type_name("DS_CONFIG.json")
      ->group(group);
  add_read_options(sub, o.config.reading, group);
  sub.add_option("--steps", o.steps,
                 "optimizer steps in all, counted from the beginning of the training: a run loaded "
                 "at step 10 with --steps 20 does 10 more")
      ->required()
      ->check(at_least(1))
      ->group(group);
  sub.add_option(
         "--rampup-batch-size", o.config.ramp_up,
         "the first steps have START samples, and INCREMENT more at a time, until the batch "
         "is whole after SAMPLES samples")
      ->delimiter(',')
      ->expected(3)
      ->check(at_least(1))
      ->type_name("START,INCREMENT,SAMPLES")
      ->group(group);
  sub.add_option("--seed", o.config.seed,
                 "seed of new weights, data order and dropout; default: the configuration's "
                 "\"seed\", else 1234")
      ->check(at_least(0))
      ->group(group);
  sub.add_option("--threads", o.config.threads, "CPU threads; default: all that may be used")
      ->check(at_least(1))
      ->group(group);
  add_device_option(sub, o.device)->group(group);
  sub.add_option("--comm-config", o.comm_config,
                 "communication options as JSON (docs/communication.md)")
      ->type_name("JSON")
      ->group(group);
}

void add_fine_tuning(CLI::App& sub, TrainOptions& o) {
  const char* group = "Fine-tuning";
  FineTuneOptions& f = o.fine_tune;
  auto* lora =
      sub.add_option("--lora", f.lora,
                     "freeze the model and train low-rank adapters: R, or R:ALPHA to scale them by "
                     "ALPHA / R; ALPHA is R by default")
          ->check(lora_rank())
          ->type_name("R")
          ->group(group);
  sub.add_option("--lora-targets", f.lora_targets,
                 "modules to adapt, by the end of their Hugging Face names, as q_proj,v_proj; "
                 "default: all linear layers but the head")
      ->needs(lora)
      ->delimiter(',')
      ->expected(1, 1000)
      ->type_name("A,B")
      ->group(group);
  sub.add_option("--lora-dropout", f.lora_dropout, "dropout before the adapters; default 0")
      ->needs(lora)
      ->check(CLI::Range(0.0, 1.0))
      ->group(group);
  sub.add_option("--adapter", f.adapter, "go on with the adapters of this PEFT folder")
      ->excludes(lora)
      ->type_name("DIR")
      ->group(group);
  sub.add_option("--adapter-out", o.adapter_out, "write the adapters alone here, in PEFT's layout")
      ->type_name("DIR")
      ->group(group);
  sub.add_option("--freeze", f.freeze,
                 "do not train parameters whose name matches: * is any text, ? one character; may "
                 "be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("PATTERN")
      ->group(group);
  sub.add_option("--unfreeze", f.unfreeze,
                 "train these, whatever --lora and --freeze say; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("PATTERN")
      ->group(group);
  sub.add_option("--head", f.head,
                 "architecture to build instead of that of --model, such as BertForMaskedLM; "
                 "what its head lacks starts fresh")
      ->type_name("ARCHITECTURE")
      ->group(group);
}

void add_checkpoints(CLI::App& sub, TrainOptions& o) {
  const char* const group = "Checkpoints";
  auto* save = sub.add_option("--save", o.save, "save here at the end and when interrupted")
                   ->type_name("DIR")
                   ->group(group);
  sub.add_option("--save-interval", o.save_interval, "save also every N steps; 0 = not")
      ->needs(save)
      ->check(at_least(0))
      ->group(group);
  sub.add_option("--keep", o.config.keep,
                 "delete this run's older checkpoints in --save, all but the newest N")
      ->needs(save)
      ->check(at_least(1))
      ->group(group);
  sub.add_flag("--force", o.force, "let --save be a folder with another run's checkpoints")
      ->needs(save)
      ->group(group);
  auto* load = sub.add_option("--load", o.load, "go on from the newest valid checkpoint here")
                   ->type_name("DIR")
                   ->group(group);
  auto* tag = sub.add_option("--tag", o.tag, "checkpoint to load instead of the newest")
                  ->needs(load)
                  ->type_name("NAME")
                  ->group(group);

  LoadParts& parts = o.load_parts;
  sub.add_flag("--load-or-begin", parts.or_begin,
               "begin a run when --load is not there or holds no checkpoint")
      ->needs(load)
      ->excludes(tag)
      ->group(group);
  auto* weights_only =
      sub.add_flag("--load-weights-only", parts.weights_only,
                   "take the weights of --load and begin anew at step 0, as another run")
          ->needs(load)
          ->group(group);
  sub.add_flag("--load-no-optimizer", parts.no_optimizer,
               "leave the moments and the loss scale of --load out")
      ->needs(load)
      ->excludes(weights_only)
      ->group(group);
  sub.add_flag("--load-no-schedule", parts.no_schedule, "begin the learning rate's schedule anew")
      ->needs(load)
      ->excludes(weights_only)
      ->group(group);
  sub.add_flag(
         "--load-partial", parts.partial,
         "with --model: parameters that --load lacks stay as they are, others are passed over")
      ->needs(load)
      ->group(group);
  sub.add_flag("--load-strict", parts.strict,
               "refuse to go on with other settings or data than the loaded run's, instead of "
               "warning")
      ->needs(load)
      ->excludes(weights_only)
      ->group(group);
}

void add_records(CLI::App& sub, TrainOptions& o) {
  const char* const group = "Records";
  sub.add_option("--metrics", o.metrics,
                 "one JSON object per step; with --load it goes on behind the loaded step, else it "
                 "begins anew")
      ->type_name("OUT.jsonl")
      ->group(group);
  sub.add_option("--tensorboard", o.config.tensorboard, "TensorBoard events")
      ->type_name("DIR")
      ->group(group);
  sub.add_option("--csv", o.config.csv, "one CSV file per scalar")->type_name("DIR")->group(group);
  sub.add_option("--eval-interval", o.eval_interval,
                 "validate every N steps and at the end; 0 = never")
      ->check(at_least(0))
      ->capture_default_str()
      ->group(group);
  sub.add_option("--eval-batches", o.eval_batches, "micro batches per validation; 0 = all")
      ->check(at_least(0))
      ->capture_default_str()
      ->group(group);
  sub.add_option("--log-interval", o.log_interval, "steps per line where there is no terminal")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(group);
  sub.add_flag("--megatron-log", o.megatron_log,
               "print the line of Megatron's training every --log-interval steps")
      ->group(group);
  sub.add_flag("--quiet", o.quiet, "no progress")->group(group);
}

void add_exits(CLI::App& sub, ExitOptions& o) {
  const char* group = "Ending early, after a save, with status 0";
  sub.add_flag("--exit-signal-handler", o.on_terminate, "on SIGTERM, instead of status 143")
      ->group(group);
  sub.add_option("--exit-interval", o.interval, "after a step that N divides")
      ->check(at_least(1))
      ->group(group);
  sub.add_option("--exit-duration-in-mins", o.minutes,
                 "after the first step that ends so many minutes after the start")
      ->check(CLI::PositiveNumber)
      ->type_name("MINUTES")
      ->group(group);
  sub.add_option("--kill-switch-file", o.file, "after the first step at which this file is there")
      ->type_name("FILE")
      ->group(group);
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("train", "Train a model on text or tokens");
  auto options = std::make_shared<TrainOptions>();
  add_what_to_train(*sub, *options);
  add_how_to_train(*sub, *options);
  add_fine_tuning(*sub, *options);
  add_checkpoints(*sub, *options);
  add_records(*sub, *options);
  add_exits(*sub, options->exit);
  sub->callback([&action, options] {
    if (options->load_parts.or_begin && !has_checkpoint(options->load)) options->load.clear();
    if (options->model.empty() && options->load.empty()) {
      throw CLI::RequiredError("--model (or --load)");
    }
    if (options->data.empty() && options->data_spec.empty()) {
      throw CLI::RequiredError("--data (or --data-spec)");
    }
    action = [options] { return run_training(*options); };
  });
}

}  // namespace tool
