// Which parameters `ds train` trains: low-rank adapters, freezing, another head; and how a resumed
// run finds the same ones again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli_fwd.h"
#include "ds.hpp"
#include "format.h"

namespace tool {

struct FineTuneOptions {
  std::string lora;                       // "R" or "R:ALPHA"; "" = no new adapters
  std::vector<std::string> lora_targets;  // empty = "all-linear"
  std::optional<double> lora_dropout;
  std::string adapter;                // folder of adapters to go on with
  std::vector<std::string> freeze;    // patterns of names
  std::vector<std::string> unfreeze;  // released after that, and after the adapters
  std::string head;                   // architecture that replaces the folder's or config.json's

  // Whether it changes which parameters there are or which of them train.
  bool chooses() const {
    return !lora.empty() || !adapter.empty() || !freeze.empty() || !unfreeze.empty();
  }
};

// Refuses a text that is not R or R:ALPHA.
CLI::Validator lora_rank();

// Adds adapters, freezes and releases, in this order. Failures name the option.
void adapt(libds::Model& model, const FineTuneOptions& options, int64_t seed);

// What adapt() did, for checkpoints: equal documents make equal parameters.
Json describe_adaptation(const FineTuneOptions& options);

// Parameters in all, and those of them that train.
struct ParameterCounts {
  int64_t all = 0;
  int64_t trained = 0;
};
ParameterCounts count_parameters(const libds::Model& model);

}  // namespace tool
