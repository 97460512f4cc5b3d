// PEFT's adapter folders: adapter_config.json and adapter_model.safetensors.
#include "models/lora.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/file.h"
#include "models/adapters.h"
#include "models/config_reader.h"
#include "models/weights.h"

namespace ds::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";

// Members whose presence with any value but null, false or nothing would change the adapters.
constexpr const char* kMustBeEmpty[] = {"use_dora",
                                        "lora_bias",
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "layers_to_transform",
                                        "layer_replication",
                                        "trainable_token_indices",
                                        "target_parameters",
                                        "exclude_modules",
                                        "use_qalora",
                                        "alora_invocation_tokens",
                                        "layers_pattern"};

bool is_empty(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

// The tensor of an adapter folder that belongs to a parameter.
std::string adapter_key(const Model& model, nn::ParamId weight, const char* part) {
  return str_cat(kPrefix, module_name(model, weight), ".", part, ".weight");
}

std::string leaf_of(const std::string& module) { return module.substr(module.rfind('.') + 1); }

}  // namespace

double LoraOptions::scale() const {
  return use_rslora ? alpha / std::sqrt(static_cast<double>(r)) : alpha / static_cast<double>(r);
}

LoraOptions parse_lora(const Json& config) {
  DS_CHECK(config.is_object(), Code::kConfig, kConfigFile, ": an object is expected");
  const ConfigReader read(config, kConfigFile);
  const std::string type = read.text("peft_type", "LORA");
  DS_CHECK(type == "LORA", Code::kUnsupported, kConfigFile, ": peft_type ", printable(type),
           " is not available; LORA is");
  LoraOptions options;
  options.r = read.count("r", options.r, 1 << 16);
  options.alpha = read.number("lora_alpha", 8, 1e-12, 1e12);
  options.dropout = read.number("lora_dropout", 0, 0, 1);
  options.use_rslora = read.flag("use_rslora", false);
  options.seed = static_cast<uint64_t>(read.count("seed", 0, INT64_MAX, 0));
  if (const auto found = config.find("target_modules");
      found != config.end() && found->is_string()) {
    const std::string target = read.text("target_modules", "");
    DS_CHECK(target == "all-linear", Code::kUnsupported, kConfigFile, ": target_modules ",
             printable(target), " would be a pattern; give a list of modules, or \"all-linear\"");
    options.target_modules = {target};
  } else {
    options.target_modules = read.texts("target_modules");
  }
  const std::string bias = read.text("bias", "none");
  DS_CHECK(bias == "none", Code::kUnsupported, kConfigFile, ": bias ", printable(bias),
           " is not available; none is");
  for (const char* key : kMustBeEmpty) {
    const auto found = config.find(key);
    DS_CHECK(found == config.end() || is_empty(*found), Code::kUnsupported, kConfigFile, ": ", key,
             " is not available");
    read.ignore({key});
  }
  // Members of other methods come and go with PEFT's versions; empty ones say nothing.
  for (const auto& [key, value] : config.items()) {
    if (is_empty(value)) read.ignore({key.c_str()});
  }
  options.base = read.text("base_model_name_or_path", "");
  // What the file's layout, other programs or initialisation use; values come from the tensors.
  read.ignore({"fan_in_fan_out", "revision", "inference_mode", "auto_mapping", "task_type",
               "init_lora_weights", "modules_to_save", "peft_version", "megatron_core",
               "qalora_group_size"});
  read.finish();
  return options;
}

Json lora_json(const LoraOptions& options) {
  Json out = Json::object();
  out["peft_type"] = "LORA";
  out["r"] = options.r;
  out["lora_alpha"] = options.alpha;
  out["lora_dropout"] = options.dropout;
  out["target_modules"] = options.target_modules;
  if (options.target_modules == std::vector<std::string>{"all-linear"}) {
    out["target_modules"] = "all-linear";
  }
  out["use_rslora"] = options.use_rslora;
  out["bias"] = "none";
  out["seed"] = options.seed & INT64_MAX;
  if (!options.base.empty()) out["base_model_name_or_path"] = options.base;
  return out;
}

void save_lora(Model& model, const fs::path& folder, DType dtype) {
  DS_CHECK(model.lora(), Code::kState, "the model carries no adapters to save");
  DS_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16,
           Code::kInvalidArgument, "adapters are saved as float32, bfloat16 or float16, not ",
           dtype_name(dtype));
  std::vector<SafetensorsTensor> tensors;
  std::set<std::string> targets, saved_modules;
  std::set<nn::ParamId> of_adapters;
  bool transposed = false;
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const nn::Adapter* adapter = model.parameters().adapter(id);
    if (adapter == nullptr) continue;
    targets.insert(leaf_of(module_name(model, id)));
    transposed = transposed || model.architecture().external_name(id).transposed;
    tensors.push_back(
        external_tensor(model, adapter->a, {adapter_key(model, id, "lora_A")}, dtype));
    tensors.push_back(
        external_tensor(model, adapter->b, {adapter_key(model, id, "lora_B")}, dtype));
    of_adapters.insert({adapter->a, adapter->b});
  }
  for (nn::ParamId id = 0; id < model.architecture().parameters().size(); ++id) {
    if (!model.parameters()[id].trainable) continue;
    ExternalName external = model.architecture().external_name(id);
    const std::string module = external.name.substr(0, external.name.rfind('.'));
    saved_modules.insert(leaf_of(module));
    external.name = kPrefix + external.name;
    tensors.push_back(external_tensor(model, id, external, dtype));
  }
  const LoraOptions& options = model.lora()->options;
  Json config = lora_json(options);
  config.erase("seed");  // PEFT knows no such member
  // As PEFT writes it: the names that "all-linear" stood for.
  if (config["target_modules"].is_string()) config["target_modules"] = targets;
  config["base_model_name_or_path"] = options.base.empty() ? Json(nullptr) : Json(options.base);
  config["fan_in_fan_out"] = transposed;
  config["inference_mode"] = true;
  config["init_lora_weights"] = true;
  config["modules_to_save"] = saved_modules.empty() ? Json() : Json(saved_modules);
  const Head head = model.architecture().info().head;
  config["task_type"] = head == Head::kCausalLm         ? Json("CAUSAL_LM")
                        : head == Head::kClassification ? Json("SEQ_CLS")
                                                        : Json();
  if (!model.writes_files()) return produce_safetensors(tensors, INT64_MAX);
  make_folders(folder);
  write_safetensors(folder / kWeightsFile, std::move(tensors));
  write_file_durably(folder / kConfigFile, dump_json(config, 2) + "\n");
}

void load_lora(Model& model, const fs::path& folder) {
  const fs::path path = folder / kConfigFile;
  const Json config = parse_json(read_text_file(path, int64_t{16} << 20),
                                 printable(path.string(), 300), Code::kConfig);
  const LoraOptions options = parse_lora(config);
  const auto opened = std::make_shared<SafetensorsModel>(folder / kWeightsFile);
  const SafetensorsModel& file = *opened;
  add_lora(model, options);
  try {
    // Everything is checked before a weight changes.
    std::map<nn::ParamId, ExternalTensor> loads;
    std::set<std::string> used;
    const auto plan = [&](nn::ParamId id, const std::string& key, bool transposed) {
      const SafetensorsEntry& entry = file.require(key);
      check_external(model, id, entry, transposed);
      loads[id] = {&entry, transposed};
      used.insert(key);
    };
    std::vector<std::string> released;
    for (nn::ParamId id = 0; id < model.architecture().parameters().size(); ++id) {
      if (const nn::Adapter* adapter = model.parameters().adapter(id)) {
        plan(adapter->a, adapter_key(model, id, "lora_A"), false);
        plan(adapter->b, adapter_key(model, id, "lora_B"), false);
      }
      const ExternalName external = model.architecture().external_name(id);
      if (file.find(kPrefix + external.name) != nullptr) {
        plan(id, kPrefix + external.name, external.transposed);
        released.push_back(model.parameters()[id].name);
      }
    }
    for (const SafetensorsEntry* entry : file.entries()) {
      DS_CHECK(used.contains(entry->name), Code::kUnsupported, printable(folder.string(), 300),
               " holds tensor ", printable(entry->name),
               ", which belongs to no adapter of this model");
    }
    nn::HeldWeights& held = model.held_weights("adapters cannot be loaded");
    const auto source = file_weights(opened, loads, held.loader());
    if (held.loader()) {
      model.set_weight_loader(source);
    } else {
      const OpContext ctx = held.context(model.context());
      for (const auto& [id, load] : loads) {
        const nn::Parameter& p = model.parameters()[id];
        Tensor out = held.view(id).view({p.shape.elements()});
        nn::fill_weights(*source, ctx, id, p, 0, out);
      }
    }
    if (!released.empty()) set_trainable(model, released, true);
  } catch (...) {
    remove_lora(model);
    throw;
  }
}

}  // namespace ds::models
