// Models made of the caller's own parameters, and what callers ask about single parameters.
#include <vector>

#include "base/json.h"
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/model_object.h"
#include "capi/tensor_object.h"
#include "device/cuda_device.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::capi {
namespace {

static_assert(sizeof(ds_parameter) == 80);

constexpr int64_t kMaxParameters = int64_t{1} << 30;

bool is_weight_type(DType type) {
  return type == DType::kFloat32 || type == DType::kBFloat16 || type == DType::kFloat16;
}

// One element of the caller's array, checked.
struct OwnParameter {
  nn::Parameter parameter;
  Tensor value;
  bool lend = false;
};

OwnParameter read_parameter(const ds_parameter* given, const std::string& where) {
  const ds_parameter in = struct_param(given, where.c_str());
  OwnParameter out;
  nn::Parameter& p = out.parameter;
  p.name = utf8_param(in.name, (where + ".name").c_str());
  DS_CHECK(!p.name.empty(), Code::kInvalidArgument, where, ".name is empty");
  if (in.value != nullptr) {
    out.value = enter(in.value, (where + ".value").c_str(), Entry::kShared)->tensor;
  }
  DS_CHECK(in.shape != nullptr || in.ndim == 0, Code::kInvalidArgument, where,
           ".shape is NULL and ndim ", in.ndim);
  const bool shape_of_value = out.value && in.shape == nullptr && in.ndim == 0;
  p.shape = shape_of_value ? out.value.shape() : shape_param(in.shape, in.ndim);
  p.dtype = out.value ? out.value.dtype() : DType::kFloat32;
  if (in.dtype != 0) p.dtype = dtype_param(in.dtype, (where + ".dtype").c_str());
  DS_CHECK(is_weight_type(p.dtype), Code::kUnsupported, where, " (", printable(p.name), ") is ",
           dtype_name(p.dtype), "; parameters are float32, bfloat16 or float16");
  p.trainable = in.frozen == 0;
  p.decays = in.no_decay == 0;
  if (in.group != nullptr) p.group = utf8_param(in.group, (where + ".group").c_str());
  if (in.alias != nullptr) p.aliases.emplace_back(utf8_param(in.alias, (where + ".alias").c_str()));
  if (in.has_expert != 0) {
    DS_CHECK(in.expert >= 0 && in.expert <= INT32_MAX, Code::kInvalidArgument, where,
             ".expert is out of range: ", in.expert);
    p.expert = in.expert;
  }
  out.lend = in.lend != 0;
  if (out.value) {
    DS_CHECK(on_host(out.value) || out.value.contiguous(), Code::kUnsupported, where,
             ".value lies on a GPU and must be packed row-major");
    DS_CHECK(is_weight_type(out.value.dtype()), Code::kUnsupported, where, ".value is ",
             dtype_name(out.value.dtype()), "; float32, bfloat16 or float16 are needed");
    DS_CHECK(out.value.shape() == p.shape, Code::kInvalidArgument, where, ".value has shape ",
             out.value.shape().text(), ", the parameter ", p.shape.text());
  }
  if (out.lend) {
    DS_CHECK(out.value, Code::kInvalidArgument, where, " lends no value");
    DS_CHECK(out.value.contiguous(), Code::kUnsupported, where,
             ".value is lent and must be packed row-major");
    DS_CHECK(!out.value.storage()->read_only(), Code::kInvalidArgument, where,
             ".value is lent and read-only");
    DS_CHECK(p.dtype == out.value.dtype(), Code::kInvalidArgument, where, ".dtype is ",
             dtype_name(p.dtype), ", the lent value is ", dtype_name(out.value.dtype()));
  }
  return out;
}

std::vector<OwnParameter> read_parameters(const ds_parameter* parameters, int64_t count) {
  DS_CHECK(parameters != nullptr, Code::kInvalidArgument, "parameters is NULL");
  DS_CHECK(count >= 1 && count <= kMaxParameters, Code::kInvalidArgument, "count is ", count,
           "; 1 to ", kMaxParameters, " parameters are possible");
  // The caller's header says how long an element is.
  const int64_t stride = checked_struct_size(parameters, "parameters[0]");
  std::vector<OwnParameter> out;
  for (int64_t i = 0; i < count; ++i) {
    const auto* const at = reinterpret_cast<const ds_parameter*>(
        reinterpret_cast<const char*>(parameters) + i * stride);
    const std::string where = str_cat("parameters[", i, "]");
    DS_CHECK(checked_struct_size(at, where.c_str()) == stride, Code::kInvalidArgument, where,
             ".struct_size is ", at->struct_size, ", that of the first element is ", stride);
    out.push_back(read_parameter(at, where));
  }
  return out;
}

// Where the values lie that are on a GPU: the model lives there. -1: none is.
int gpu_of(const std::vector<OwnParameter>& own) {
  int gpu = -1;
  for (size_t i = 0; i < own.size(); ++i) {
    if (!own[i].value || on_host(own[i].value)) continue;
    const int index = own[i].value.storage()->device_index();
    DS_CHECK(gpu < 0 || gpu == index, Code::kUnsupported, "parameters[", i,
             "].value lies on cuda:", index, ", one before it on cuda:", gpu,
             "; a model lives on one GPU");
    gpu = index;
  }
  for (size_t i = 0; gpu >= 0 && i < own.size(); ++i) {
    DS_CHECK(!own[i].lend || !on_host(own[i].value), Code::kUnsupported, "parameters[", i,
             "].value is lent in host memory, and the model lives on cuda:", gpu,
             ", where others lie; lend memory of that GPU");
  }
  return gpu;
}

void set_master(models::Model& model, nn::ParamId id, const Tensor& value) {
  Tensor packed = value;
  if (!value.contiguous()) {
    packed = model.host_context().workspace(value.dtype(), value.shape());
    ops::cast(model.host_context(), value, packed);
  }
  Tensor master = model.weights().view(model.context(), id);
  ops::cast(model.context(), to_device(packed, model.device()), master);
}

std::shared_ptr<models::Model> make_model(std::vector<OwnParameter> own) {
  nn::ParameterSet set;
  for (const OwnParameter& p : own) set.add(p.parameter);
  auto model = models::Model::from_parameters(std::move(set));
  if (const int gpu = gpu_of(own); gpu >= 0) model->set_device(make_cuda_device(gpu));
  for (size_t i = 0; i < own.size(); ++i) {
    const auto id = static_cast<nn::ParamId>(i);
    if (own[i].value) set_master(*model, id, own[i].value);
    if (own[i].lend) model->weights().borrowed().add(id, own[i].value);
  }
  model->device()->default_stream().synchronize();  // the values are the caller's again
  return model;
}

Json describe_parameter(const nn::Parameter& p) {
  return {{"name", p.name},
          {"shape", std::vector<int64_t>(p.shape.sizes().begin(), p.shape.sizes().end())},
          {"dtype", dtype_name(p.dtype)},
          {"trainable", p.trainable},
          {"decays", p.decays},
          {"group", p.group},
          {"aliases", p.aliases}};
}

// The same memory, which nobody may write through this tensor.
Tensor read_only(const Tensor& view) {
  const Storage& storage = *view.storage();
  auto guarded = std::make_shared<Storage>(storage.device_kind(), storage.device_index(),
                                           view.raw(), view.bytes(), /*read_only=*/true,
                                           [view] { static_cast<void>(view); });
  return {std::move(guarded), 0, view.dtype(), view.shape()};
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_model_create_from_parameters(const ds_parameter* parameters, int64_t count,
                                          ds_model** out_model) {
  return guard(__func__, [&] {
    ds_model*& out = out_param(out_model, "out_model");
    out = publish<ds_model>(
        std::make_shared<ModelObject>(make_model(read_parameters(parameters, count))));
  });
}

ds_status ds_model_parameter_index(const ds_model* model, const char* name, int64_t* out_index) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    int64_t& out = out_param(out_index, "out_index");
    out = object->model->parameters().find(std::string(utf8_param(name, "name")));
  });
}

ds_status ds_model_parameter_name(const ds_model* model, int64_t parameter, char** out_name) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    char*& out = out_param(out_name, "out_name");
    out = make_c_string(parameter_at(*object->model, parameter).name);
  });
}

ds_status ds_model_parameter_describe(const ds_model* model, int64_t parameter,
                                      ds_parameter_info* out_info) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    const nn::Parameter& p = parameter_at(*object->model, parameter);
    ds_parameter_info info{};
    info.elements = p.shape.elements();
    info.ndim = p.shape.dims();
    for (int i = 0; i < p.shape.dims(); ++i) info.shape[i] = p.shape[i];
    info.dtype = static_cast<ds_dtype>(p.dtype);
    info.trainable = p.trainable ? 1 : 0;
    info.decays = p.decays ? 1 : 0;
    give_struct(info, out_info, "out_info");
  });
}

ds_status ds_model_parameters(const ds_model* model, char** out_json) {
  return guard(__func__, [&] {
    const auto object = look_up(model, "model");
    char*& out = out_param(out_json, "out_json");
    const nn::ParameterSet& parameters = object->model->parameters();
    Json list = Json::array();
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      list.push_back(describe_parameter(parameters[id]));
    }
    out = make_c_string(dump_json(list));
  });
}

ds_status ds_model_get_parameter(ds_model* model, int64_t parameter, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    out = publish_tensor(used->get(parameter_at(*used, parameter).name));
  });
}

ds_status ds_model_set_parameter(ds_model* model, int64_t parameter, const ds_tensor* value) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    const nn::Parameter& p = parameter_at(*used, parameter);
    const auto input = enter(value, "value", Entry::kShared);
    used->set(p.name, host_copy(*input));
  });
}

ds_status ds_model_view_parameter(ds_model* model, int64_t parameter, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const UsedModel used(model, "model");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    static_cast<void>(parameter_at(*used, parameter));
    const auto id = static_cast<nn::ParamId>(parameter);
    DS_CHECK(used->device()->kind() == DeviceKind::kCpu || !used->has_architecture(),
             Code::kUnsupported, "the weights are on ", used->device()->describe(),
             ", where the library works with them; read a copy (ds_model_get_parameter)");
    nn::ModelWeights& weights = used->weights();
    weights.check_not_lost();
    DS_CHECK(weights.whole(), Code::kUnsupported,
             "the weights are spread over processes (ZeRO stage 3, expert_parallel); open a scope "
             "(ds_engine_open_scope), or read a copy");
    Tensor view = weights.view(used->context(), id);
    // What follows from a master is made anew by every step: what is written would be lost.
    out = publish_tensor(weights.computes_with_master(id) ? std::move(view) : read_only(view));
  });
}
