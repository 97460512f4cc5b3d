// What training would take on each rank of a pretended world: bytes of memory by use and bytes that
// move per step, from shapes alone. Layout, sharing and optimizer state are the engine's own.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "config/options.h"

namespace ds {

struct PlanOptions {
  int world = 1;
  int ranks_per_node = 0;       // 0: all on one
  int64_t sequence_length = 0;  // 0: the model's positions
  ReadOptions reading;          // of the configuration
  std::optional<bool> on_gpu;   // ranks have GPUs; unset: where the optimizer is offloaded
};

// What a plan is compared with, and what to look for.
struct PlanQuestion {
  bool compare = false;  // whether it fits, and what would help
  bool fit = false;      // the fastest variant that fits
  // Bytes of a rank; unset: of this machine.
  std::optional<int64_t> memory, gpu_memory, disk;
  std::string folder;  // for files, where the configuration names none
  Json rates;          // that are not to be measured
};

// `model` is a config.json, or {"parameters": N, "layers": L} for a model of which only the size is
// known. The batch is that of the configuration. Keys of the result: see ds_plan in ds.h. Throws
// what loading the configuration or building the model would.
Json plan_training(const Json& model, std::string_view config_json, const PlanOptions& options,
                   const PlanQuestion& question = {});

}  // namespace ds
