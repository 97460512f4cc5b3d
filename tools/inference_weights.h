// The options --device, --weights, --group-size, --int8-activations, --weights-folder,
// --max-in-cpu, --read-ahead, --threads, --kv-block-tokens, --kv-pool-tokens, --kv-cache and
// --comm-config of what runs a model without training it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli_fwd.h"
#include "ds.hpp"

namespace tool {

struct WeightOptions {
  std::string device = "cpu";
  std::string weights;  // empty = as the library holds them
  int64_t group_size = 64;
  std::string int8_activations;  // prompts or all; empty = none
  std::string folder;            // of a file that weights rest in; empty = memory
  int64_t max_in_cpu = 0;
  int64_t read_ahead = 100'000'000;  // elements
  std::optional<int64_t> threads;
  int64_t kv_block_tokens = 0;  // 0 = one piece
  int64_t kv_pool_tokens = 0;   // 0 = any number
  std::string kv_cache = "auto";
  std::string comm_config = "{}";
};

// `threads`: whether the subcommand has no --threads of its own.
void add_weight_options(CLI::App& sub, WeightOptions& options, bool threads);

// Of what makes text.
void add_cache_options(CLI::App& sub, WeightOptions& options);

// The option of everything that runs models.
CLI::Option* add_device_option(CLI::App& sub, std::string& device);

// What runs the model on the device and in the form that the options ask for.
libds::Generator make_generator(libds::Model model, const WeightOptions& options);

// Of what several ranks may run together.
void add_comm_option(CLI::App& sub, WeightOptions& options);
// The group that this process was launched in, alone when it was not.
libds::Comm make_comm(const WeightOptions& options);
// The same where several ranks run the model: they share its experts, and each makes this call.
libds::Generator make_generator(libds::Model model, const WeightOptions& options,
                                libds::Comm& comm);

}  // namespace tool
