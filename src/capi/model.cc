// Models of ds.h: making, opening, exporting, reading and setting weights, generating.
#include "base/json.h"
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/model_object.h"
#include "capi/tensor_object.h"
#include "capi/token_args.h"
#include "device/open_device.h"
#include "engine/version.h"
#include "infer/generate.h"
#include "models/inputs.h"
#include "models/saved_model.h"
#include "models/weights.h"
#include "tensor/transfer.h"

namespace ds::capi {
namespace {

static_assert(sizeof(ds_generate_options) == 64);

ds_model* publish_model(std::shared_ptr<models::Model> model) {
  return publish<ds_model>(std::make_shared<ModelObject>(std::move(model)));
}

infer::GenerateOptions generate_options(const ds_generate_options* given) {
  infer::GenerateOptions options;
  if (given == nullptr) return options;
  const ds_generate_options in = struct_param(given, "options");
  DS_CHECK(in.max_tokens >= 0, Code::kInvalidArgument, "options: max_tokens is ", in.max_tokens,
           "; 0 (for ", options.max_tokens, ") or more is needed");
  DS_CHECK(in.reserved == 0, Code::kInvalidArgument, "options: reserved is ", in.reserved,
           "; it must be 0");
  if (in.max_tokens > 0) options.max_tokens = in.max_tokens;
  options.sampling = {in.temperature, in.top_k, in.top_p};
  options.seed = static_cast<uint64_t>(in.seed);
  if (in.has_stop_token != 0) options.stop_token = in.stop_token;
  options.graphs = in.no_graphs == 0;
  return options;
}

std::function<bool(int32_t)> token_callback(ds_token_fn on_token, void* user_data) {
  if (on_token == nullptr) return {};
  return [on_token, user_data](int32_t token) {
    try {
      return on_token(user_data, token) == 0;
    } catch (...) {  // a C++ caller's mistake
      fail(Code::kCallback, "on_token threw an exception; return nonzero to stop");
    }
  };
}

const nn::Parameter& parameter_at(const models::Model& model, int64_t index) {
  const int64_t count = model.parameters().size();
  DS_CHECK(index >= 0 && index < count, Code::kInvalidArgument, "index is ", index,
           "; the model has ", count, " parameter tensors");
  return model.parameters()[static_cast<nn::ParamId>(index)];
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

ds_status ds_model_open(const char* folder, ds_model** out_model) {
  return guard(__func__, [&] {
    ds_model*& out = out_param(out_model, "out_model");
    out = publish_model(models::open_model(path_param(folder, "folder")));
  });
}

ds_status ds_model_open_with(const char* folder, const char* changes_json, int64_t head_seed,
                             ds_model** out_model) {
  return guard(__func__, [&] {
    ds_model*& out = out_param(out_model, "out_model");
    const std::string path = path_param(folder, "folder");
    models::OpenOptions options;
    if (changes_json != nullptr) {
      options.config_changes = parse_json(changes_json, "configuration changes", Code::kConfig);
      DS_CHECK(options.config_changes.is_object(), Code::kConfig,
               "configuration changes: an object is needed");
    }
    DS_CHECK(head_seed >= -1, Code::kInvalidArgument, "head_seed is ", head_seed,
             "; -1 (no fresh head) or more is needed");
    if (head_seed >= 0) options.head_seed = static_cast<uint64_t>(head_seed);
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

ds_status ds_model_export_sharded(ds_model* model, const char* folder, int32_t dtype,
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

ds_status ds_model_export(ds_model* model, const char* folder, int32_t dtype) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const std::string path = path_param(folder, "folder");
    const DType type = dtype_param(dtype, "dtype");
    models::export_model(*used, path, type);
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

ds_status ds_model_set_device(ds_model* model, const char* device) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    used->set_device(open_device(text_param(device, "device")));
  });
}

ds_status ds_model_device(const ds_model* model, char** out_device) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    char*& out = out_param(out_device, "out_device");
    out = make_c_string(device_name(*used->device()));
  });
}

ds_status ds_model_tensor_count(const ds_model* model, int64_t* out_count) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    out_param(out_count, "out_count") = object->model->parameters().size();
  });
}

ds_status ds_model_parameter_count(const ds_model* model, int64_t* out_count) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    out_param(out_count, "out_count") = object->model->parameters().elements();
  });
}

ds_status ds_model_tensor_name(const ds_model* model, int64_t index, char** out_name) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    char*& out = out_param(out_name, "out_name");
    out = make_c_string(parameter_at(*object->model, index).name);
  });
}

ds_status ds_model_get_tensor(ds_model* model, const char* name, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const std::string parameter(utf8_param(name, "name"));
    out = publish_tensor(used->get(parameter));
  });
}

ds_status ds_model_set_tensor(ds_model* model, const char* name, const ds_tensor* value) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const std::string parameter(utf8_param(name, "name"));
    const auto input = enter(value, "value", Entry::kShared);
    used->set(parameter, host_copy(*input));
  });
}

ds_status ds_model_generate(ds_model* model, const ds_tensor* prompt,
                            const ds_generate_options* options, ds_token_fn on_token,
                            void* user_data, ds_tensor** out_ids) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const auto input = enter(prompt, "prompt", Entry::kShared);
    ds_tensor*& out = out_param(out_ids, "out_ids");
    const infer::GenerateOptions chosen = generate_options(options);
    const std::vector<int32_t> ids = id_list(host_tensor(*input, "prompt"), "prompt");
    out = publish_tensor(
        id_tensor(infer::generate(used->context(), used->store(), used->architecture(), ids, chosen,
                                  token_callback(on_token, user_data))));
  });
}

ds_status ds_model_logits(ds_model* model, const ds_tensor* ids, const ds_tensor* attention_mask,
                          ds_tensor** out_logits) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const auto input = enter(ids, "ids", Entry::kShared);
    std::optional<Entered<TensorObject>> mask;
    if (attention_mask != nullptr) {
      mask.emplace(look_up(attention_mask, "attention_mask"), Entry::kShared, "attention_mask");
    }
    ds_tensor*& out = out_param(out_logits, "out_logits");
    const OpContext ctx = used->host_context();
    const Tensor tokens = models::token_ids(ctx, host_tensor(*input, "ids"), "ids",
                                            used->architecture().info().vocab_size);
    const Tensor keys =
        models::key_mask(ctx, mask ? host_tensor(**mask, "attention_mask") : Tensor(), tokens);
    out = publish_tensor(to_host(
        infer::batch_logits(used->context(), used->store(), used->architecture(), tokens, keys),
        used->host()));
  });
}

ds_status ds_model_hidden_states(ds_model* model, const ds_tensor* ids,
                                 const ds_tensor* attention_mask, const ds_tensor* token_types,
                                 ds_tensor** out_states) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const auto input = enter(ids, "ids", Entry::kShared);
    std::optional<Entered<TensorObject>> mask, types;
    if (attention_mask != nullptr) {
      mask.emplace(look_up(attention_mask, "attention_mask"), Entry::kShared, "attention_mask");
    }
    if (token_types != nullptr) {
      types.emplace(look_up(token_types, "token_types"), Entry::kShared, "token_types");
    }
    ds_tensor*& out = out_param(out_states, "out_states");
    const OpContext ctx = used->host_context();
    const models::ArchitectureInfo& info = used->architecture().info();
    models::Batch batch;
    batch.ids = models::token_ids(ctx, host_tensor(*input, "ids"), "ids", info.vocab_size);
    batch.position_ids = models::position_ids(ctx, batch.ids.size(0), batch.ids.size(1), 0);
    batch.key_mask =
        models::key_mask(ctx, mask ? host_tensor(**mask, "attention_mask") : Tensor(), batch.ids);
    if (types) {
      batch.token_types =
          models::matching_ids(ctx, host_tensor(**types, "token_types"), batch.ids, "token_types",
                               std::max<int64_t>(info.token_types, 1));
    }
    out = publish_tensor(
        to_host(infer::batch_hidden(used->context(), used->store(), used->architecture(), batch),
                used->host()));
  });
}

void ds_model_destroy(ds_model* model) { end_handle(model); }
