// Low-rank adapters (LoRA: Hu et al., arXiv:2106.09685; rank-stabilised scale: Kalajdzievski,
// arXiv:2312.03732) as users ask for them, and their folders in PEFT's layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/dtype.h"

namespace ds::models {

class Model;

struct LoraOptions {
  int64_t r = 8;
  double alpha = 8;
  double dropout = 0;
  // Modules by the end of their Hugging Face names ("q_proj", "attn.c_proj"), or "all-linear"
  // alone: every linear layer but the head.
  std::vector<std::string> target_modules;
  bool use_rslora = false;  // scale alpha / sqrt(r) instead of alpha / r
  uint64_t seed = 0;        // of the fresh A matrices; B starts at zero
  std::string base;         // base_model_name_or_path: what the adapters belong to, "" = not known

  double scale() const;
};

// The adapters that a model carries.
struct AppliedLora {
  LoraOptions options;
  std::vector<bool> trained_before;  // by parameter of the base
};

// The members of PEFT's adapter_config.json that options come from; anything else that would change
// the mathematics is refused by name. lora_json writes what parse_lora reads.
LoraOptions parse_lora(const Json& config);
Json lora_json(const LoraOptions& options);

// Writes adapter_config.json and adapter_model.safetensors with the adapters and the base's
// trainable tensors (PEFT's modules_to_save). kState for a model without adapters.
void save_lora(Model& model, const std::filesystem::path& folder, DType dtype = DType::kFloat32);

// Adds the folder's adapters to a model without any, with their values.
void load_lora(Model& model, const std::filesystem::path& folder);

}  // namespace ds::models
