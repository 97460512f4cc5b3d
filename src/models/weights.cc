#include "models/weights.h"

#include <unordered_set>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "models/saved_model.h"
#include "models/weight_loaders.h"

namespace ds::models {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kConfigLimit = int64_t{16} << 20;

// The first tensor of the files that carries one of the parameter's names. Files may write the
// family's prefix or leave it off.
class NameFinder {
 public:
  NameFinder(const SafetensorsModel& file, std::string prefix)
      : file_(file), prefix_(std::move(prefix)) {}

  const SafetensorsEntry* find(const std::string& name) const {
    if (const SafetensorsEntry* entry = file_.find(name)) return entry;
    return name.starts_with(prefix_) ? file_.find(name.substr(prefix_.size()))
                                     : file_.find(prefix_ + name);
  }
  const SafetensorsEntry* find(const ExternalName& external) const {
    if (const SafetensorsEntry* entry = find(external.name)) return entry;
    for (const std::string& other : external.also) {
      if (const SafetensorsEntry* entry = find(other)) return entry;
    }
    return nullptr;
  }

 private:
  const SafetensorsModel& file_;
  std::string prefix_;
};

// A tied tensor that the files hold under two names with different numbers: a matrix that was
// trained or replaced on its own, whatever the configuration says. nullptr when all copies agree.
const SafetensorsEntry* untied_copy(Model& model, const NameFinder& names) {
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const nn::Parameter& p = model.parameters()[id];
    if (p.aliases.empty()) continue;
    const SafetensorsEntry* const entry = names.find(model.architecture().external_name(id));
    if (entry == nullptr) continue;
    for (const std::string& alias : p.aliases) {
      const SafetensorsEntry* const copy = names.find(alias);
      if (copy != nullptr && copy != entry && !same_external(model.host_context(), *entry, *copy)) {
        return copy;
      }
    }
  }
  return nullptr;
}

// The model that config.json describes, untied where the files say so: that is what Transformers
// computes with such a folder.
std::shared_ptr<Model> described_model(const fs::path& folder, const Json& config,
                                       const SafetensorsModel& file) {
  auto model = std::make_shared<Model>(config);
  const NameFinder names(file, model->architecture().external_prefix());
  const SafetensorsEntry* const copy = untied_copy(*model, names);
  if (copy == nullptr) return model;
  log_warning("models", printable(folder.string(), 300), ": config.json ties the embedding to ",
              printable(copy->name), ", but the files hold other numbers for it: the two are ",
              "opened as separate tensors (tie_word_embeddings false), as Transformers does");
  Json untied = config;
  untied["tie_word_embeddings"] = false;
  return std::make_shared<Model>(untied);
}

// Weights in PyTorch's own format alone are programs, which this library does not run.
void check_weight_files(const fs::path& folder) {
  if (fs::exists(folder / "model.safetensors") ||
      fs::exists(folder / "model.safetensors.index.json")) {
    return;
  }
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    DS_CHECK(!fs::exists(folder / name), Code::kUnsupported, printable(folder.string(), 300),
             " holds its weights as ", name,
             " alone, a Python pickle, which can run any program and is not read; convert it once "
             "with Transformers: AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER), with "
             "the class that config.json names for AutoModel, writes model.safetensors");
  }
}

std::shared_ptr<Model> open_hugging_face(const fs::path& folder, const OpenOptions& options) {
  const fs::path config_path = folder / "config.json";
  Json config = parse_json(read_text_file(config_path, kConfigLimit),
                           printable(config_path.string(), 300), Code::kConfig);
  if (config.is_object()) config.update(options.config_changes);
  const std::optional<ScaleBlock> scale_block = take_block_scales(config);
  check_weight_files(folder);
  const auto opened = std::make_shared<SafetensorsModel>(folder);
  const SafetensorsModel& file = *opened;
  const auto model = described_model(folder, config, file);
  const Architecture& architecture = model->architecture();
  std::map<nn::ParamId, ExternalTensor> tensors;
  const NameFinder names(file, architecture.external_prefix());
  std::unordered_set<std::string> used;
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const nn::Parameter& p = model->parameters()[id];
    const ExternalName external = architecture.external_name(id);
    const SafetensorsEntry* entry = names.find(external);
    for (size_t i = 0; entry == nullptr && i < p.aliases.size(); ++i) {
      entry = names.find(p.aliases[i]);  // the other name of a tied tensor alone
    }
    if (entry == nullptr && options.head_seed && architecture.of_head(id)) continue;
    if (entry == nullptr) entry = &file.require(external.name);
    tensors[id] = {entry, external.transposed};
    const SafetensorsEntry* const scales = scale_block && in_codes(*entry) && !external.transposed
                                               ? file.find(entry->name + "_scale_inv")
                                               : nullptr;
    if (scales != nullptr) {
      tensors[id].scales = scales;
      tensors[id].block = *scale_block;
      const auto sizes = p.shape.sizes();
      check_block_scaled({entry, scales, *scale_block}, {sizes.begin(), sizes.end()});
      used.insert(scales->name);
    } else {
      check_external(*model, id, *entry, external.transposed);
    }
    used.insert(entry->name);
    // A tied tensor may be stored again under its other name; it says the same.
    for (const std::string& alias : p.aliases) {
      if (const SafetensorsEntry* copy = names.find(alias)) used.insert(copy->name);
    }
  }
  for (const SafetensorsEntry* entry : file.entries()) {
    DS_CHECK(used.contains(entry->name) || architecture.ignorable_external(entry->name),
             Code::kUnsupported, printable(folder.string(), 300), " holds tensor ",
             printable(entry->name), ", which the model does not have");
  }
  model->set_origin(folder.string());
  model->set_weight_loader(file_weights(
      opened, std::move(tensors), options.head_seed ? fresh_weights(*options.head_seed) : nullptr));
  return model;
}

void check_folder(const fs::path& folder) {
  std::error_code error;
  DS_CHECK(fs::is_directory(folder, error), Code::kNotFound, "there is no folder ",
           printable(folder.string(), 300));
}

}  // namespace

std::shared_ptr<Model> open_model(const fs::path& folder, const OpenOptions& options) {
  check_folder(folder);
  if (fs::exists(folder / "config.json")) return open_hugging_face(folder, options);
  DS_CHECK(options.config_changes.empty() && !options.head_seed, Code::kInvalidArgument,
           printable(folder.string(), 300),
           " holds no config.json: a checkpoint is opened as it was saved");
  return open_saved_model(folder);
}

TokenizerPtr open_tokenizer(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error) || fs::exists(path / "tokenizer.json")) {
    return load_tokenizer(path);
  }
  if (fs::exists(path / "vocab.json") && fs::exists(path / "merges.txt")) {
    return load_gpt2_tokenizer(path / "vocab.json", path / "merges.txt");
  }
  DS_CHECK(!fs::exists(path / "config.json"), Code::kNotFound, printable(path.string(), 300),
           " holds no tokenizer.json");
  const CheckpointReader reader = open_checkpoint(path);
  DS_CHECK(reader.has_state(kTokenizerState), Code::kNotFound, "the checkpoint ",
           printable(reader.folder().string(), 300), " holds no tokenizer");
  return parse_tokenizer_json(reader.state_text(kTokenizerState),
                              printable(reader.folder().string(), 300));
}

}  // namespace ds::models
