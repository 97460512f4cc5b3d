// Models in checkpoints: opened as they were saved, and saved without an engine.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "models/model.h"

namespace ds::models {

// Names under which a checkpoint keeps what generation needs.
inline constexpr const char* kModelConfigState = "model_config";
inline constexpr const char* kLoraState = "lora";
inline constexpr const char* kTokenizerState = "tokenizer";

// What the manifest does not say of a caller's parameter: {name: {"group", "decays", "dtype"}}.
inline constexpr const char* kOwnParametersState = "own_parameters";

// A checkpoint folder itself, or the newest valid one below it.
CheckpointReader open_checkpoint(const std::filesystem::path& folder);

// The architecture, the adapters and which parameters train, as saved; without an architecture a
// model of the caller's own parameters. kNotFound when frozen parameters were left out.
std::shared_ptr<Model> open_saved_model(const std::filesystem::path& folder);

// What open_saved_model reads beside the tensors.
void describe_model(const Model& model, PartWriter& part);
TensorMeta parameter_meta(const nn::Parameter& parameter, TensorKind kind,
                          const std::string& state = "");

// A checkpoint of the weights alone.
void save_model(Model& model, const std::filesystem::path& folder, const std::string& tag,
                const std::string& writer);

}  // namespace ds::models
