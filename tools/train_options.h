// What the command line of `ds train` can say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fine_tuning.h"
#include "run_config.h"

namespace tool {

// How much of the checkpoint --load takes over; see ds_engine_load.
struct LoadParts {
  bool weights_only = false;
  bool no_optimizer = false;
  bool no_schedule = false;
  bool partial = false;
  bool or_begin = false;  // without a checkpoint there the run begins
  bool strict = false;
};

struct TrainOptions {
  std::string model;
  std::string device = "cpu";
  ConfigOptions config;
  std::string comm_config = "{}";
  FineTuneOptions fine_tune;
  std::string data;
  std::string data_spec;
  std::string valid_data;
  std::string tokenizer;
  int64_t steps = 0;
  std::string save;
  std::string adapter_out;
  std::string load;
  std::string tag;
  LoadParts load_parts;
  bool force = false;  // save among another run's checkpoints
  std::string metrics;
  std::optional<int64_t> sequence_length;
  std::optional<std::string> split;
  int64_t eval_interval = 100;
  int64_t eval_batches = 20;
  int64_t save_interval = 0;
  int64_t log_interval = 10;
  bool quiet = false;

  // Whether the run goes on from where the loaded one was, instead of beginning with its weights.
  bool resumes() const { return !load.empty() && !load_parts.weights_only; }
};

// Runs it; gives the exit status.
int run_training(const TrainOptions& options);

}  // namespace tool
