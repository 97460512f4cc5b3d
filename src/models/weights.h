// Models and tokenizers from folders and back: Hugging Face folders (config.json, safetensors,
// tokenizer.json) and checkpoints.
#pragma once

#include <filesystem>

#include "data/tokenizer.h"
#include "models/model.h"
#include "tensor/dtype.h"

namespace ds::models {

// Names under which a checkpoint keeps what generation needs.
inline constexpr const char* kModelConfigState = "model_config";
inline constexpr const char* kTokenizerState = "tokenizer";

// `folder` holds config.json, or is a checkpoint (SAVE_DIR or SAVE_DIR/TAG).
std::shared_ptr<Model> open_model(const std::filesystem::path& folder);

// A tokenizer.json file, a folder with one (or with vocab.json and merges.txt), or a checkpoint.
TokenizerPtr open_tokenizer(const std::filesystem::path& path);

// Writes config.json and model.safetensors in fp32 or bf16.
void export_model(Model& model, const std::filesystem::path& folder, DType dtype);

}  // namespace ds::models
