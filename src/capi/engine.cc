// Engines of ds.h: training, saving, loading, questions.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "capi/args.h"
#include "capi/comm_object.h"
#include "capi/dataset_object.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/json_args.h"
#include "capi/model_object.h"
#include "capi/read_options.h"
#include "capi/tensor_object.h"
#include "capi/tokenizer_object.h"

namespace ds::capi {
namespace {

static_assert(sizeof(ds_step_report) == 360);
static_assert(static_cast<int32_t>(SkipReason::kNone) == DS_SKIP_NONE);
static_assert(static_cast<int32_t>(SkipReason::kAccumulating) == DS_SKIP_ACCUMULATING);
static_assert(static_cast<int32_t>(SkipReason::kNonFinite) == DS_SKIP_NON_FINITE);

constexpr int32_t kRequiredInputs = 2;  // of ds_engine_forward: token ids and labels
constexpr int32_t kInputs = 5;
constexpr std::array<const char*, kInputs> kInputNames = {"inputs[0]", "inputs[1]", "inputs[2]",
                                                          "inputs[3]", "inputs[4]"};

// A wrong struct is refused before the step, not after it.
void check_report(const ds_step_report* out_report) {
  if (out_report != nullptr) checked_struct_size(out_report, "out_report");
}

// As much of a name as fits, cut between characters.
void copy_name(const std::string& name, char* out, size_t capacity) {
  size_t n = std::min(name.size(), capacity - 1);
  while (n < name.size() && n > 0 && (static_cast<unsigned char>(name[n]) & 0xC0) == 0x80) --n;
  std::memcpy(out, name.data(), n);
  out[n] = '\0';
}

void give_report(const StepReport& report, ds_step_report* out_report) {
  if (out_report == nullptr) return;
  ds_step_report out{};
  out.step = report.progress.steps;
  out.micro_steps = report.progress.micro_steps;
  out.samples = report.progress.samples;
  out.tokens = report.tokens;
  out.applied = report.applied ? 1 : 0;
  out.skip_reason = static_cast<int32_t>(report.skip_reason);
  out.loss = report.loss;
  out.grad_norm = report.grad_norm;
  out.lr = report.lr;
  out.loss_scale = report.loss_scale;
  out.seconds = report.seconds;
  copy_name(report.first_bad_tensor, out.first_bad_tensor, sizeof(out.first_bad_tensor));
  out.first_bad_element = report.first_bad_element;
  out.first_bad_value = report.first_bad_value;
  write_struct(out_report, "out_report", &out, sizeof(out));
}

// With DeepSpeed's names, but for "strict".
LoadOptions load_options(const char* json) {
  const JsonArguments given(json, "load options",
                            {"load_module_only", "load_module_strict", "load_optimizer_states",
                             "load_lr_scheduler_states", "strict"});
  LoadOptions options;
  options.module_only = given.flag("load_module_only", options.module_only);
  options.module_strict = given.flag("load_module_strict", options.module_strict);
  options.optimizer_states = given.flag("load_optimizer_states", options.optimizer_states);
  options.schedule = given.flag("load_lr_scheduler_states", options.schedule);
  options.strict = given.flag("strict", options.strict);
  return options;
}

std::string tag_param(const char* tag) {
  if (tag == nullptr) return {};
  const std::string_view text = utf8_param(tag, "tag");
  DS_CHECK(!text.empty(), Code::kInvalidArgument, "tag is empty; pass NULL for the default");
  return std::string(text);
}

void make_engine(std::string_view config, const ReadOptions& reading, ds_model* model,
                 ds_comm* comm, ds_engine*& out) {
  const auto trained = enter(model, "model");
  std::shared_ptr<Communicator> group;
  if (comm != nullptr) group = look_up(comm, "comm")->comm;
  auto object = std::make_shared<EngineObject>(config, reading, *trained, std::move(group));
  auto optimizer = std::make_shared<OptimizerObject>(object);
  object->optimizer = publish<ds_optimizer>(std::move(optimizer));
  ds_optimizer* const child = object->optimizer;
  try {
    out = publish<ds_engine>(std::move(object));
  } catch (...) {
    end_handle(child);
    throw;
  }
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_create(const char* config_json, ds_model* model, ds_comm* comm,
                           ds_engine** out_engine) {
  return guard(__func__, [&] {
    ds_engine*& out = out_param(out_engine, "out_engine");
    make_engine(text_param(config_json, "config_json"), {}, model, comm, out);
  });
}

ds_status ds_engine_create_with(const char* config_json, const char* options_json, ds_model* model,
                                ds_comm* comm, ds_engine** out_engine) {
  return guard(__func__, [&] {
    ds_engine*& out = out_param(out_engine, "out_engine");
    const std::string_view config = text_param(config_json, "config_json");
    const JsonArguments options(options_json, "options", read_option_keys());
    make_engine(config, read_options(options), model, comm, out);
  });
}

ds_status ds_engine_create_from_file(const char* path, const char* options_json, ds_model* model,
                                     ds_comm* comm, ds_engine** out_engine) {
  return guard(__func__, [&] {
    ds_engine*& out = out_param(out_engine, "out_engine");
    const std::string file = path_param(path, "path");
    const JsonArguments options(options_json, "options", read_option_keys());
    const std::string config = read_text_file(file);
    try {
      make_engine(config, read_options(options), model, comm, out);
    } catch (const Error& error) {
      if (error.code() != Code::kConfig) throw;
      throw Error(error.code(), printable(file, 400) + ": " + error.message());
    }
  });
}

ds_status ds_engine_forward(ds_engine* engine, ds_tensor* const* inputs, int32_t count,
                            ds_tensor** out_loss) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    ds_tensor*& out = out_param(out_loss, "out_loss");
    DS_CHECK(inputs != nullptr, Code::kInvalidArgument, "inputs is NULL");
    DS_CHECK(count >= kRequiredInputs && count <= kInputs, Code::kInvalidArgument, "count is ",
             count, "; token ids and labels (", kRequiredInputs, ") and at most ", kInputs,
             " tensors are needed");
    std::array<std::optional<Entered<TensorObject>>, kInputs> entered;
    std::array<Tensor, kInputs> tensors;
    for (int32_t i = 0; i < count; ++i) {
      if (i >= kRequiredInputs && inputs[i] == nullptr) continue;
      const auto at = static_cast<size_t>(i);
      entered[at].emplace(look_up(inputs[i], kInputNames[at]), Entry::kShared, kInputNames[at]);
      tensors[at] = host_tensor(**entered[at], kInputNames[at]);
    }
    ReservedTensor loss;
    out = loss.give(
        object->engine().forward({tensors[0], tensors[1], tensors[2], tensors[3], tensors[4]}));
  });
}

ds_status ds_engine_backward(ds_engine* engine, const ds_tensor* loss) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const auto value = enter(loss, "loss", Entry::kShared);
    object->engine().backward(value->tensor);
  });
}

ds_status ds_engine_step(ds_engine* engine, ds_step_report* out_report) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    check_report(out_report);
    give_report(object->engine().step(), out_report);
  });
}

ds_status ds_engine_set_dataset(ds_engine* engine, const ds_dataset* dataset) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    DatasetPtr data;
    if (dataset != nullptr) data = look_up(dataset, "dataset")->dataset;
    object->engine().set_dataset(std::move(data));
  });
}

ds_status ds_engine_train_batch(ds_engine* engine, ds_step_report* out_report) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    check_report(out_report);
    give_report(object->engine().train_batch(), out_report);
  });
}

ds_status ds_engine_evaluate(ds_engine* engine, const ds_dataset* dataset, int64_t max_batches,
                             double* out_loss) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const auto data = look_up(dataset, "dataset");
    double& out = out_param(out_loss, "out_loss");
    out = object->engine().evaluate(*data->dataset, max_batches);
  });
}

ds_status ds_engine_save(ds_engine* engine, const char* folder, const char* tag) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    object->engine().save(path_param(folder, "folder"), tag_param(tag));
  });
}

ds_status ds_engine_save_wait(ds_engine* engine) {
  return guard(__func__, [&] { enter(engine, "engine")->engine().wait_for_save(); });
}

ds_status ds_engine_load(ds_engine* engine, const char* folder, const char* tag) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    object->engine().load(path_param(folder, "folder"), tag_param(tag));
  });
}

ds_status ds_engine_load_with(ds_engine* engine, const char* folder, const char* tag,
                              const char* options_json) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const std::string path = path_param(folder, "folder"), name = tag_param(tag);
    object->engine().load(path, name, load_options(options_json));
  });
}

ds_status ds_engine_set_tokenizer(ds_engine* engine, const ds_tokenizer* tokenizer) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    TokenizerPtr attached;
    if (tokenizer != nullptr) attached = look_up(tokenizer, "tokenizer")->tokenizer;
    object->engine().set_tokenizer(std::move(attached));
  });
}

ds_status ds_engine_set_client_state(ds_engine* engine, const char* json) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    object->engine().set_client_state(
        json == nullptr ? Json() : parse_json(json, "client state", Code::kInvalidArgument));
  });
}

ds_status ds_engine_client_state(ds_engine* engine, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(object->engine().client_state()));
  });
}

ds_status ds_engine_config(ds_engine* engine, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(object->engine().config_document(), 2));
  });
}

ds_status ds_engine_memory_report(const ds_engine* engine, char** out_json) {
  return guard(__func__, [&] {
    const auto object = look_up(engine, "engine");
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(object->engine().memory_report(), 2));
  });
}

ds_status ds_engine_profile(ds_engine* engine, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(object->engine().profile(), 2));
  });
}

ds_status ds_engine_global_step(ds_engine* engine, int64_t* out_step) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    out_param(out_step, "out_step") = object->engine().progress().steps;
  });
}

ds_status ds_engine_samples(ds_engine* engine, int64_t* out_samples) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    out_param(out_samples, "out_samples") = object->engine().progress().samples;
  });
}

ds_optimizer* ds_engine_optimizer(ds_engine* engine) {
  return guard_pointer<ds_optimizer*>(__func__,
                                      [&] { return look_up(engine, "engine")->optimizer; });
}

void ds_engine_destroy(ds_engine* engine) {
  const auto object = std::static_pointer_cast<EngineObject>(
      HandleTable::instance().remove(handle_number(engine), HandleKind::kEngine));
  if (object) end_handle(object->optimizer);
}
