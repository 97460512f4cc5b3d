// GPT-2 (Radford et al., 2019): pre-norm transformer, learned positions, tied embeddings; and GPT
// with experts in place of some MLPs (DeepSpeed-MoE, arXiv:2201.05596).
#pragma once

#include "models/architecture.h"
#include "models/gpt_experts.h"
#include "ops/activation.h"

namespace ds::models {

struct Gpt2Config {
  int64_t vocab_size = 50257;
  int64_t positions = 1024;
  int64_t width = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t inner = 0;  // 4 * width unless given
  ops::Activation activation = ops::Activation::kGeluTanh;
  double residual_dropout = 0.1;
  double embedding_dropout = 0.1;
  double attention_dropout = 0.1;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attention = true;
  bool scale_by_layer = false;  // scale_attn_by_inverse_layer_idx
  bool tied = true;
  GptExperts experts;
};

// Reads and checks a config.json of model_type gpt2, or gpt_moe.
Gpt2Config parse_gpt2_config(const Json& config, bool experts);

std::unique_ptr<Architecture> make_gpt2(const Json& config);
std::unique_ptr<Architecture> make_gpt_moe(const Json& config);

}  // namespace ds::models
