// Models and tokenizers from folders and back: Hugging Face folders (config.json, safetensors,
// tokenizer.json) and checkpoints.
#pragma once

#include <filesystem>
#include <map>
#include <optional>

#include "checkpoint/safetensors.h"
#include "models/block_scaled.h"
#include "models/model.h"
#include "tensor/dtype.h"
#include "tokenizer/tokenizer.h"

namespace ds::models {

struct OpenOptions {
  // Members that replace those of config.json: {"architectures": ["BertForMaskedLM"]}.
  Json config_changes = Json::object();
  // Parameters of a head that the files lack start fresh from this seed; without it they must be
  // there.
  std::optional<uint64_t> head_seed;
};

// `folder` holds config.json (a Hugging Face folder, whose tensors are read from a memory map one
// by one), or is a checkpoint (SAVE_DIR or SAVE_DIR/TAG), for which there are no options.
std::shared_ptr<Model> open_model(const std::filesystem::path& folder,
                                  const OpenOptions& options = {});

// A tokenizer.json file, a folder with one (or with vocab.json and merges.txt), or a checkpoint.
TokenizerPtr open_tokenizer(const std::filesystem::path& path);

// Writes config.json and model.safetensors in fp32, bf16 or fp16, tensor by tensor; above
// max_shard_bytes (0 = no limit) numbered shards and their index. A model of the caller's own
// parameters is written by their names, without a config.json. Adapters must be merged first.
void export_model(Model& model, const std::filesystem::path& folder, DType dtype,
                  int64_t max_shard_bytes = 0);

// A parameter as a tensor of a safetensors file in `dtype`, transposed if asked, made piece by
// piece while it is written. The model must outlive it.
SafetensorsTensor external_tensor(Model& model, nn::ParamId id, const ExternalName& external,
                                  DType dtype);
// Whether a tensor of a file fits a parameter: F32, BF16 or F16 of its shape (transposed if asked).
void check_external(const Model& model, nn::ParamId id, const SafetensorsEntry& entry,
                    bool transposed);
// Whether two tensors of files have the same shape and, as fp32, the same numbers.
bool same_external(const OpContext& ctx, const SafetensorsEntry& a, const SafetensorsEntry& b);
// A parameter in a file, which check_external has passed.
struct ExternalTensor {
  const SafetensorsEntry* entry = nullptr;
  bool transposed = false;
  const SafetensorsEntry* scales = nullptr;  // of an entry in codes, in such blocks
  ScaleBlock block{};
};
// Those parameters from a file, the others from `rest`.
std::shared_ptr<const nn::WeightLoader> file_weights(std::shared_ptr<const SafetensorsModel> file,
                                                     std::map<nn::ParamId, ExternalTensor> tensors,
                                                     std::shared_ptr<const nn::WeightLoader> rest);

}  // namespace ds::models
