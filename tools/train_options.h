// What the command line of `ds train` can say.
#pragma once

#include <chrono>
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

// What ends a run before its last step, after a save, with status 0.
struct ExitOptions {
  bool on_terminate = false;  // SIGTERM
  int64_t interval = 0;       // steps; 0: none
  double minutes = 0;         // since the start of the program; 0: none
  std::string file;           // that is there; "": none
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
  std::string valid_spec;
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
  bool megatron_log = false;  // lines as Megatron's
  bool quiet = false;
  ExitOptions exit;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();

  // Whether the run goes on from where the loaded one was, instead of beginning with its weights.
  bool resumes() const { return !load.empty() && !load_parts.weights_only; }
};

// Runs it; gives the exit status.
int run_training(const TrainOptions& options);

}  // namespace tool
