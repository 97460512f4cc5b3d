// The DeepSpeed configuration of a training run: a file or the program's default, plus what options
// of the command line say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "read_options.h"

namespace tool {

struct ConfigOptions {
  std::string path;                     // "" = that of the loaded run, else default_config()
  std::string resumed;                  // configuration of the loaded run, "" = none
  ReadOptions reading;                  // --set and the like
  std::optional<int64_t> seed;          // wins over the file's "seed"
  std::optional<int64_t> resumed_seed;  // of the loaded run; the file's "seed" wins over it
  std::optional<int64_t> threads;
  std::optional<int64_t> keep;         // checkpoints of the run that stay
  std::vector<int64_t> ramp_up;        // rampup_batch_size; none = as the file says
  std::string dataloader_type;         // "" = as the file says
  std::optional<int64_t> micro_batch;  // wins over the file's batch sizes
  std::string tensorboard;             // folder, "" = as the file says
  std::string csv;
  // Of the run, for what "auto" becomes and the check.
  int64_t steps = 0;  // 0 = unknown
  int64_t world = 1;
  std::string device = "cpu";
};

struct RunConfig {
  std::string text;     // the document
  std::string options;  // how the library reads it: for ds_engine_create
  int64_t seed = 0;     // what the run uses
};

// Reads and checks the configuration; Failure lists all that is wrong with it.
RunConfig load_config(const ConfigOptions& options);

// What `ds train` uses without --config.
const char* default_config();

// What training uses, in two lines for people: optimizer, rate, schedule; precision, clipping,
// dropout. `resolved` is the engine's configuration, `model` the model's config.json.
std::string describe_settings(const Json& resolved, const Json& model);

}  // namespace tool
