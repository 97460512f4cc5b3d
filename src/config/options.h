// How a document is read: what "auto" becomes, what is passed over, and what is set over it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace ds {

// Where a document will be used.
struct ConfigEnvironment {
  int64_t data_parallel_size = 1;  // ranks that see different samples
  int64_t world_size = 1;          // all ranks
  bool fit_world = false;          // take the world that three given batch sizes fit instead
  bool on_gpu = false;             // weights lie in a GPU's memory
  std::optional<int64_t> hidden_size = {};  // of the model
};

// What the caller knows, for values that a document leaves to it by "auto".
struct AutoValues {
  std::optional<int64_t> train_batch, micro_batch, accumulation;
  std::optional<double> gradient_clipping;
  std::optional<double> lr, beta1, beta2, eps, weight_decay;
  std::optional<int64_t> total_steps, warmup_steps;
  std::optional<std::string> precision;  // "fp32", "fp16", "bf16"
  std::optional<int64_t> stage;
  std::optional<std::string> offload_optimizer, offload_param;  // devices
};

struct ReadOptions {
  std::optional<AutoValues> resolve_auto;  // unset: "auto" is an error outside of typed sections
  // Trailing commas, '#' comments, comment keys, and unknown keys where DeepSpeed ignores them.
  bool lenient = false;
  // The document must say what trains: without an optimizer it is refused.
  bool require_optimizer = false;
  // Values that replace or add to the document's: a JSON pointer or a dotted path each.
  std::vector<std::pair<std::string, Json>> set;
};

}  // namespace ds
