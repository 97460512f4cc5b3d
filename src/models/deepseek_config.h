// What a config.json of DeepSeek-V2 and V3 says.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "models/rotary_scaling.h"
#include "nn/moe.h"
#include "ops/activation.h"

namespace ds::models {

enum class DeepseekKind { kV2, kV3 };

struct DeepseekConfig {
  DeepseekKind kind = DeepseekKind::kV2;
  int64_t vocab_size = 0;
  int64_t width = 0;
  int64_t inner = 0;  // of layers without experts
  int64_t layers = 0;
  int64_t positions = 0;
  ops::Activation activation = ops::Activation::kSilu;
  double norm_epsilon = 1e-6;
  double initializer_range = 0.02;
  bool tied = false;
  bool mlp_bias = false;
  int64_t padding = -1;  // row of the embedding without a gradient, -1 = none
  RotaryConfig rotary;

  struct Attention {
    int64_t heads = 0;
    int64_t query_rank = 0;                      // of the queries' latent; 0: they have none
    int64_t rank = 0;                            // of keys' and values' latent
    int64_t plain = 0, turning = 0, values = 0;  // channels of a head, as in nn::LatentAttention
    double scale = 1;                            // of products of queries and keys
    double dropout = 0;
    bool bias = false;
    bool interleaved = true;
  };
  Attention attention;

  struct Experts {
    int64_t count = 0;  // of a layer that has them
    int64_t inner = 0;
    int64_t shared = 0;        // so many experts' channels for all tokens
    nn::Router router;         // but for its parameters
    bool biased = false;       // experts are chosen by scores with a bias
    double bias_rate = 0;      // by which training moves it
    std::vector<bool> layers;  // which layers have them
  };
  Experts experts;
};

DeepseekConfig parse_deepseek(const Json& config, DeepseekKind kind);

}  // namespace ds::models
