// Layers of experts of a GPT, by the options that DeepSpeed and Megatron-DeepSpeed have for them.
#pragma once

#include <string>
#include <vector>

#include "models/config_reader.h"
#include "nn/moe.h"

namespace ds::models {

struct GptExperts {
  std::vector<int64_t> counts;  // by layer of the model: 0 where it has none
  nn::Router router;            // but for its weight
  bool residual = false;        // mlp_type: beside a dense MLP
  bool biased = false;          // experts are chosen by scores with a bias
  double bias_rate = 0;         // by which a step moves it

  int64_t of_layer(int64_t index) const {
    return counts.empty() ? 0 : counts[static_cast<size_t>(index)];
  }
};

GptExperts read_gpt_experts(const ConfigReader& read, int64_t layers);

}  // namespace ds::models
