// Small models with layers of experts.
#pragma once

#include <string>
#include <vector>

#include "zero_world.h"

namespace ds::zero_test {

// 12 experts for the tokens of a micro batch: some get none.
inline Json mixtral() {
  return {{"model_type", "mixtral"},
          {"vocab_size", 61},
          {"hidden_size", 16},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"max_position_embeddings", 32},
          {"num_local_experts", 12},
          {"num_experts_per_tok", 2},
          {"output_router_logits", true},
          {"router_aux_loss_coef", 0.05},
          {"initializer_range", 0.2}};
}

// With an expert that all tokens go through besides.
inline Json qwen2_moe() {
  return {{"model_type", "qwen2_moe"},
          {"vocab_size", 61},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"moe_intermediate_size", 12},
          {"shared_expert_intermediate_size", 20},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"max_position_embeddings", 32},
          {"num_experts", 8},
          {"num_experts_per_tok", 2},
          {"norm_topk_prob", true},
          {"output_router_logits", true},
          {"router_aux_loss_coef", 0.05},
          {"initializer_range", 0.2}};
}

inline Json gpt_moe(const Json& change = Json::object()) {
  Json model = model_config(0.1);
  model["model_type"] = "gpt_moe";
  model["num_experts"] = 4;
  model["initializer_range"] = 0.1;
  model.merge_patch(change);
  return model;
}

// Latent attention, experts in groups, one that all tokens go through besides where asked for.
inline Json deepseek(const char* type, const Json& more) {
  Json model = {{"model_type", type},
                {"vocab_size", 61},
                {"hidden_size", 16},
                {"intermediate_size", 24},
                {"num_hidden_layers", 2},
                {"num_attention_heads", 2},
                {"max_position_embeddings", 32},
                {"q_lora_rank", 10},
                {"kv_lora_rank", 8},
                {"qk_nope_head_dim", 6},
                {"qk_rope_head_dim", 4},
                {"v_head_dim", 5},
                {"first_k_dense_replace", 1},
                {"moe_intermediate_size", 12},
                {"n_routed_experts", 12},
                {"num_experts_per_tok", 2},
                {"n_group", 4},
                {"topk_group", 2},
                {"initializer_range", 0.2}};
  model.merge_patch(more);
  return model;
}

// Under a name for tests.
struct ExpertModel {
  const char* name;
  Json model;
};

// `pyramid`: numbers of experts of its two layers with any.
inline std::vector<ExpertModel> expert_models(const Json& pyramid) {
  return {{"mixtral", mixtral()},
          {"qwen2", qwen2_moe()},
          {"deepseek_v2", deepseek("deepseek_v2", {{"topk_method", "group_limited_greedy"},
                                                   {"output_router_logits", true},
                                                   {"n_shared_experts", 1}})},
          {"deepseek_v3", deepseek("deepseek_v3", {{"moe_router_bias_update_rate", 0.01}})},
          {"sigmoid_biased", gpt_moe({{"moe_router_score_function", "sigmoid"},
                                      {"moe_router_enable_expert_bias", true},
                                      {"moe_top_k", 2},
                                      {"moe_drop_tokens", false}})},
          {"top1_residual", gpt_moe({{"mlp_type", "residual"},
                                     {"moe_noisy_gate_policy", "RSample"},
                                     {"moe_z_loss_coeff", 1e-3}})},
          {"top2_pyramid", gpt_moe({{"n_layer", 4},
                                    {"num_experts", pyramid},
                                    {"moe_top_k", 2},
                                    {"moe_min_capacity", 1},
                                    {"moe_train_capacity_factor", 0.7}})},
          {"top3", gpt_moe({{"moe_top_k", 3},
                            {"expert_interval", 1},
                            {"moe_min_capacity", 1},
                            {"moe_noisy_gate_policy", "Jitter"},
                            {"moe_train_capacity_factor", 0.5}})}};
}

inline int64_t total(const Json& counts) {
  int64_t sum = 0;
  for (const Json& count : counts) sum += count.get<int64_t>();
  return sum;
}

}  // namespace ds::zero_test
