// What a config.json of Llama's kin says.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "models/rotary_scaling.h"
#include "ops/activation.h"

namespace ds::models {

enum class LlamaKind {
  kLlama,
  kMistral,
  kMixtral,
  kQwen2,
  kQwen2Moe,
  kQwen3,
  kQwen3Moe,
  kOlmo2,
  kOlmoe
};

// Norms of queries and keys, before they turn.
enum class HeadNorm {
  kNone,
  kEach,  // of each head
  kAll,   // of all heads together
};

struct ExpertsConfig {
  int64_t count = 0;  // of a layer; 0: the model has none
  int64_t choices = 2;
  int64_t inner = 0;
  int64_t shared_inner = 0;  // of the expert that all tokens go through; 0: none
  bool normalise = false;    // weights of a token's experts add up to 1
  double balance = 0;        // what the balancing loss is multiplied by in training
  double jitter = 0;
  std::vector<bool> layers;  // which layers have them
};

struct LlamaConfig {
  LlamaKind kind = LlamaKind::kLlama;
  int64_t vocab_size = 32000;
  int64_t width = 4096;
  int64_t inner = 11008;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t kv_heads = 32;
  int64_t head_size = 128;
  int64_t positions = 2048;
  ops::Activation activation = ops::Activation::kSilu;
  double norm_epsilon = 1e-6;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  bool tied = false;
  HeadNorm head_norm = HeadNorm::kNone;
  bool norms_after = false;      // of what attention and MLP give, not of what they get
  int64_t padding = -1;          // row of the embedding without a gradient, -1 = none
  std::vector<int64_t> windows;  // by layer, 0 = none
  RotaryConfig rotary;
  ExpertsConfig experts;
};

LlamaConfig parse_llama(const Json& config, LlamaKind kind);

}  // namespace ds::models
