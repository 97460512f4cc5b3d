// ds/model.hpp - Models. Part of ds.hpp.
#ifndef DS_MODEL_HPP
#define DS_MODEL_HPP

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base.hpp"
#include "model.h"
#include "tensor.hpp"
#include "tokenizer.hpp"

namespace libds {

struct GenerateOptions {
  int64_t max_tokens = 64;
  double temperature = 0;  // 0 = always the likeliest token
  int64_t top_k = 0;       // 0 = all
  double top_p = 0;        // 0 = all
  int64_t seed = 0;
  std::optional<int32_t> stop_token;
  bool graphs = true;  // on a GPU: launch the work of a token as one CUDA graph
};

// Receives each new token; false stops the text, and generate() throws DS_ERR_CALLBACK.
using TokenFunction = std::function<bool(int32_t token)>;
// Receives each new token of several texts, by the index of their prompts; false ends this text,
// and the others go on.
using TextTokenFunction = std::function<bool(int64_t text, int32_t token)>;

// One parameter of a program that computes its own gradients.
struct Parameter {
  std::string name = {};
  std::vector<int64_t> shape = {};  // that of `value` when there is one
  const Tensor* value = nullptr;    // first value
  std::string group = {};
  std::string alias = {};
  ds_dtype dtype = 0;  // 0 = that of `value`, else float32
  bool lend = false;   // `value` receives every new value
  bool frozen = false;
  bool decays = true;
  std::optional<int64_t> expert = std::nullopt;
};

class Model : public detail::Handle<ds_model, ds_model_destroy> {
 public:
  using Handle::Handle;

  // Fresh weights.
  static Model create(const std::string& config_json, int64_t seed) {
    ds_model* out = nullptr;
    check(ds_model_create(config_json.c_str(), seed, &out));
    return Model(out);
  }
  // Weights of a Hugging Face folder or a checkpoint; `options_json` as in ds_model_open.
  static Model open(const std::string& folder, const std::string& options_json = "") {
    ds_model* out = nullptr;
    check(ds_model_open(folder.c_str(), detail::or_null(options_json), &out));
    return Model(out);
  }
  // A second model of the same weights, to generate from while an engine trains this one on.
  Model copy() const {
    ds_model* out = nullptr;
    check(ds_model_copy(get(), &out));
    return Model(out);
  }
  // The caller's own parameters, without a forward pass.
  static Model from_parameters(const std::vector<Parameter>& parameters) {
    std::vector<ds_parameter> plain;
    for (const Parameter& p : parameters) {
      ds_parameter out = DS_PARAMETER_INIT;
      out.name = p.name.c_str();
      const bool own_shape = !p.value || !p.shape.empty();
      out.shape = own_shape ? p.shape.data() : nullptr;
      out.ndim = own_shape ? static_cast<int32_t>(p.shape.size()) : 0;
      out.value = p.value ? p.value->get() : nullptr;
      out.group = detail::or_null(p.group);
      out.alias = detail::or_null(p.alias);
      out.dtype = p.dtype;
      out.lend = p.lend;
      out.frozen = p.frozen;
      out.no_decay = !p.decays;
      out.has_expert = p.expert.has_value();
      out.expert = p.expert.value_or(0);
      plain.push_back(out);
    }
    ds_model* out = nullptr;
    check(ds_model_create_from_parameters(plain.data(), static_cast<int64_t>(plain.size()), &out));
    return Model(out);
  }
  // `max_shard_bytes` 0: one file.
  void export_to(const std::string& folder, ds_dtype dtype = DS_FLOAT32,
                 int64_t max_shard_bytes = 0) {
    check(ds_model_export(get(), folder.c_str(), dtype, max_shard_bytes));
  }
  // A checkpoint of the weights alone.
  void save(const std::string& folder, const std::string& tag = "") {
    check(ds_model_save(get(), folder.c_str(), detail::or_null(tag)));
  }

  // "cpu" or a GPU such as "cuda:0"; see ds_model_set_device.
  void set_device(const std::string& device) { check(ds_model_set_device(get(), device.c_str())); }
  // A cudaStream_t that the work on the GPU is ordered with, or null; see ds_model_set_stream.
  void set_stream(void* stream) { check(ds_model_set_stream(get(), stream)); }
  // Where the weights are, in the same words.
  std::string device() const {
    const ds_model_info of = info();
    return of.device_kind == DS_DEVICE_CUDA ? "cuda:" + std::to_string(of.device_index) : "cpu";
  }

  // `pattern` of names: * is any text, ? one character.
  void set_trainable(const std::string& pattern, bool trainable) {
    check(ds_model_set_trainable(get(), pattern.c_str(), trainable));
  }
  // `options_json` as in ds_model_add_lora.
  void add_lora(const std::string& options_json) {
    check(ds_model_add_lora(get(), options_json.c_str()));
  }
  void merge_lora() { check(ds_model_merge_lora(get())); }
  void save_adapter(const std::string& folder, ds_dtype dtype = DS_FLOAT32) {
    check(ds_model_save_adapter(get(), folder.c_str(), dtype));
  }
  void load_adapter(const std::string& folder) {
    check(ds_model_load_adapter(get(), folder.c_str()));
  }

  std::string config() const {
    char* out = nullptr;
    check(ds_model_config(get(), &out));
    return detail::take(out);
  }
  // Sizes and place.
  ds_model_info info() const {
    ds_model_info out = DS_MODEL_INFO_INIT;
    check(ds_model_describe(get(), &out));
    return out;
  }
  // Parameters are numbered in the model's order; index() finds the number of a name.
  int64_t index(const std::string& name) const {
    int64_t out = 0;
    check(ds_model_parameter_index(get(), name.c_str(), &out));
    return out;
  }
  std::string parameter_name(int64_t parameter) const {
    char* out = nullptr;
    check(ds_model_parameter_name(get(), parameter, &out));
    return detail::take(out);
  }
  std::vector<std::string> parameter_names() const {
    const int64_t count = info().parameters;
    std::vector<std::string> names;
    for (int64_t i = 0; i < count; ++i) names.push_back(parameter_name(i));
    return names;
  }
  ds_parameter_info parameter_info(int64_t parameter) const {
    ds_parameter_info out = DS_PARAMETER_INFO_INIT;
    check(ds_model_parameter_describe(get(), parameter, &out));
    return out;
  }
  // All of them as a JSON list.
  std::string parameters() const {
    char* out = nullptr;
    check(ds_model_parameters(get(), &out));
    return detail::take(out);
  }
  // A float32 copy.
  Tensor parameter(int64_t parameter) const {
    ds_tensor* out = nullptr;
    check(ds_model_get_parameter(get(), parameter, &out));
    return Tensor(out);
  }
  Tensor parameter(const std::string& name) const { return parameter(index(name)); }
  void set_parameter(int64_t parameter, const Tensor& value) {
    check(ds_model_set_parameter(get(), parameter, value.get()));
  }
  void set_parameter(const std::string& name, const Tensor& value) {
    set_parameter(index(name), value);
  }
  // The memory that the model computes with; see ds_model_view_parameter.
  Tensor view(int64_t parameter) {
    ds_tensor* out = nullptr;
    check(ds_model_view_parameter(get(), parameter, &out));
    return Tensor(out);
  }
  Tensor view(const std::string& name) { return view(index(name)); }
};

}  // namespace libds

#endif  // DS_MODEL_HPP
