// Models of ds.h: making, opening, copying, moving, writing.
#include "base/json.h"
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/json_args.h"
#include "capi/model_object.h"
#include "capi/tensor_object.h"
#include "device/open_device.h"
#include "engine/version.h"
#include "models/saved_model.h"
#include "models/weights.h"

namespace ds::capi {
namespace {

ds_model* publish_model(std::shared_ptr<models::Model> model) {
  return publish<ds_model>(std::make_shared<ModelObject>(std::move(model)));
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_model_create(const char* config_json, int64_t seed, ds_model** out_model) {
  return guard(__func__, [&] {
    ds_model*& out = out_param(out_model, "out_model");
    const Json config =
        parse_json(text_param(config_json, "config_json"), "model configuration", Code::kConfig);
    out = publish_model(models::Model::create(config, static_cast<uint64_t>(seed)));
  });
}

ds_status ds_model_open(const char* folder, const char* options_json, ds_model** out_model) {
  return guard(__func__, [&] {
    ds_model*& out = out_param(out_model, "out_model");
    const std::string path = path_param(folder, "folder");
    const JsonArguments given(options_json, "options", {"config", "head_seed"});
    models::OpenOptions options;
    if (given.has("config")) {
      options.config_changes = given.at("config");
      if (!options.config_changes.is_object()) given.refuse("config", "must be an object");
    }
    if (given.has("head_seed")) {
      options.head_seed = static_cast<uint64_t>(given.integer("head_seed", 0, 0, INT64_MAX));
    }
    out = publish_model(models::open_model(path, options));
  });
}

ds_status ds_model_copy(ds_model* model, ds_model** out_model) {
  return guard(__func__, [&] {
    const UsedModel source(model, "model");
    ds_model*& out = out_param(out_model, "out_model");
    out = publish_model(source->copy());
  });
}

ds_status ds_model_save(ds_model* model, const char* folder, const char* tag) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const std::string path = path_param(folder, "folder");
    const std::string name = tag == nullptr ? "weights" : std::string(utf8_param(tag, "tag"));
    models::save_model(*used, path, name, str_cat("ds ", kLibraryVersion));
  });
}

ds_status ds_model_export(ds_model* model, const char* folder, ds_dtype dtype,
                          int64_t max_shard_bytes) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const std::string path = path_param(folder, "folder");
    const DType type = dtype_param(dtype, "dtype");
    DS_CHECK(max_shard_bytes >= 0, Code::kInvalidArgument, "max_shard_bytes is ", max_shard_bytes,
             "; 0 (one file) or more is needed");
    models::export_model(*used, path, type, max_shard_bytes);
  });
}

ds_status ds_model_config(const ds_model* model, char** out_json) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    char*& out = out_param(out_json, "out_json");
    const models::Model& given = *object->model;
    out = make_c_string(given.has_architecture() ? dump_json(given.architecture().config(), 2)
                                                 : "null");
  });
}

ds_status ds_model_describe(const ds_model* model, ds_model_info* out_info) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    const models::Model& given = *object->model;
    ds_model_info info{};
    info.parameters = given.parameters().size();
    info.elements = given.parameters().elements();
    for (nn::ParamId id = 0; id < given.parameters().size(); ++id) {
      const nn::Parameter& p = given.parameters()[id];
      if (p.trainable) info.trainable_elements += p.shape.elements();
    }
    if (given.has_architecture()) {
      info.vocab_size = given.architecture().info().vocab_size;
      info.max_positions = given.architecture().info().max_positions;
    }
    info.device_kind = static_cast<ds_device_kind>(given.device()->kind());
    info.device_index = given.device()->index();
    give_struct(info, out_info, "out_info");
  });
}

ds_status ds_model_set_device(ds_model* model, const char* device) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    used->set_device(open_device(text_param(device, "device")));
  });
}

ds_status ds_model_set_stream(ds_model* model, void* stream) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    used->set_caller_stream(stream);
  });
}

void ds_model_destroy(ds_model* model) { end_handle(model); }
