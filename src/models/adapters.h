// Which parameters a model has and which of them train: freezing, and low-rank adapters. Values
// stay; only a model that no engine trains can change (kState otherwise).
#pragma once

#include <string>
#include <vector>

#include "models/model.h"

namespace ds::models {

// Freezes or releases the parameters whose name (the model's, an alias or the one in files) matches
// a pattern with '*' and '?'; returns how many. kNotFound when a pattern matches none.
int64_t set_trainable(Model& model, const std::vector<std::string>& patterns, bool trainable);

// Freezes every parameter and puts low-rank adapters beside the chosen weights; they are parameters
// MODULE.lora_A.weight and MODULE.lora_B.weight at the end of the set.
void add_lora(Model& model, const LoraOptions& options);
// Adds the adapters to their weights and removes them, or removes them alone; what trained before
// add_lora trains again.
void merge_lora(Model& model);
void remove_lora(Model& model);

// Name in Hugging Face folders of the module that a weight belongs to.
std::string module_name(const Model& model, nn::ParamId weight);

}  // namespace ds::models
