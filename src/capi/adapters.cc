// Which parameters of a model train: freezing, and low-rank adapters.
#include "models/adapters.h"
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/json_args.h"
#include "capi/model_object.h"
#include "capi/tensor_object.h"
#include "models/lora.h"

namespace ds::capi {
namespace {

models::LoraOptions lora_options(const char* options_json) {
  static_cast<void>(text_param(options_json, "options_json"));
  const JsonArguments given(
      options_json, "adapter options",
      {"r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "seed"});
  models::LoraOptions options;
  options.r = given.integer("r", options.r, 1, 1 << 20);
  options.alpha = given.number("lora_alpha", options.alpha, 0, 1e9);
  options.dropout = given.number("lora_dropout", options.dropout, 0, 1);
  options.use_rslora = given.flag("use_rslora", options.use_rslora);
  options.seed = static_cast<uint64_t>(given.integer("seed", 0, 0, INT64_MAX));
  if (given.has("target_modules") && given.at("target_modules").is_string()) {
    options.target_modules = {given.required_text("target_modules")};
  } else {
    options.target_modules = given.texts("target_modules", {});
  }
  if (options.target_modules.empty()) {
    given.refuse("target_modules", "is missing: name modules, or \"all-linear\"");
  }
  return options;
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_model_set_trainable(ds_model* model, const char* pattern, int32_t trainable) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    models::set_trainable(*used, {std::string(utf8_param(pattern, "pattern"))}, trainable != 0);
  });
}

ds_status ds_model_add_lora(ds_model* model, const char* options_json) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    models::add_lora(*used, lora_options(options_json));
  });
}

ds_status ds_model_merge_lora(ds_model* model) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    models::merge_lora(*used);
  });
}

ds_status ds_model_save_adapter(ds_model* model, const char* folder, int32_t dtype) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const std::string path = path_param(folder, "folder");
    models::save_lora(*used, path, dtype_param(dtype, "dtype"));
  });
}

ds_status ds_model_load_adapter(ds_model* model, const char* folder) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    models::load_lora(*used, path_param(folder, "folder"));
  });
}
