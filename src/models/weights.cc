#include "models/weights.h"

#include <unordered_set>
#include <utility>

#include "base/file.h"
#include "models/saved_model.h"

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

std::shared_ptr<Model> open_hugging_face(const fs::path& folder, const OpenOptions& options) {
  const fs::path config_path = folder / "config.json";
  Json config = parse_json(read_text_file(config_path, kConfigLimit),
                           printable(config_path.string(), 300), Code::kConfig);
  if (config.is_object()) config.update(options.config_changes);
  const auto opened = std::make_shared<SafetensorsModel>(folder);
  const SafetensorsModel& file = *opened;
  auto model = std::make_shared<Model>(config);
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
    check_external(*model, id, *entry, external.transposed);
    tensors[id] = {entry, external.transposed};
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
  model->begin_with(file_weights(opened, std::move(tensors),
                                 options.head_seed ? fresh_weights(*options.head_seed) : nullptr));
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
