// Engines of ds.h: training, saving, loading, questions.
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "capi/args.h"
#include "capi/batch_args.h"
#include "capi/comm_object.h"
#include "capi/dataset_object.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/json_args.h"
#include "capi/model_object.h"
#include "capi/read_options.h"
#include "capi/tensor_object.h"
#include "config/config.h"

namespace ds::capi {
namespace {

static_assert(sizeof(ds_step_report) == 152);
static_assert(sizeof(ds_engine_info) == 72);
static_assert(static_cast<int32_t>(SkipReason::kNone) == DS_SKIP_NONE);
static_assert(static_cast<int32_t>(SkipReason::kAccumulating) == DS_SKIP_ACCUMULATING);
static_assert(static_cast<int32_t>(SkipReason::kNonFinite) == DS_SKIP_NON_FINITE);
static_assert(static_cast<int32_t>(SkipReason::kLargeNorm) == DS_SKIP_LARGE_NORM);

// A wrong struct is refused before the step, not after it.
void check_report(const ds_step_report* out_report) {
  if (out_report != nullptr) checked_struct_size(out_report, "out_report");
}

void give_report(const Engine& engine, const StepReport& report, ds_step_report* out_report) {
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
  out.first_bad_parameter = report.first_bad_tensor.empty()
                                ? -1
                                : engine.model()->parameters().find(report.first_bad_tensor);
  out.first_bad_element = report.first_bad_element;
  out.first_bad_value = report.first_bad_value;
  out.forward_seconds = report.forward_seconds;
  out.backward_seconds = report.backward_seconds;
  out.update_seconds = report.update_seconds;
  out.label_loss = report.label_loss;
  out.teacher_loss = report.teacher_loss;
  give_struct(out, out_report, "out_report");
}

// With DeepSpeed's names, but for "strict".
LoadOptions load_options(const char* json) {
  const JsonArguments given(
      json, "load options",
      {"load_module_only", "load_module_strict", "load_optimizer_states",
       "load_lr_scheduler_states", "may_be_missing", "strict", "restore_on_failure"});
  LoadOptions options;
  options.module_only = given.flag("load_module_only", options.module_only);
  options.module_strict = given.flag("load_module_strict", options.module_strict);
  options.optimizer_states = given.flag("load_optimizer_states", options.optimizer_states);
  options.schedule = given.flag("load_lr_scheduler_states", options.schedule);
  options.may_be_missing = given.flag("may_be_missing", options.may_be_missing);
  options.strict = given.flag("strict", options.strict);
  options.restore_on_failure = given.flag("restore_on_failure", options.restore_on_failure);
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
  out = publish<ds_engine>(
      std::make_shared<EngineObject>(config, reading, *trained, std::move(group)));
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_create(const char* config_json, const char* options_json, ds_model* model,
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

ds_status ds_engine_forward(ds_engine* engine, const ds_batch* batch, ds_tensor** out_loss) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    ds_tensor*& out = out_param(out_loss, "out_loss");
    const BatchArgument given(batch, /*with_labels=*/true);
    ReservedTensor loss;
    out = loss.give(object->engine().forward({given.ids(), given.labels(), given.attention_mask(),
                                              given.segments(), given.token_types()}));
  });
}

ds_status ds_engine_backward(ds_engine* engine, const ds_tensor* loss) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    const auto value = enter(loss, "loss", Entry::kShared);
    object->engine().backward(value->tensor);
  });
}

ds_status ds_engine_step(ds_engine* engine, ds_step_report* out_report) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    check_report(out_report);
    give_report(object->engine(), object->engine().step(), out_report);
  });
}

ds_status ds_engine_set_dataset(ds_engine* engine, const ds_dataset* dataset) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    DatasetPtr data;
    if (dataset != nullptr) data = look_up(dataset, "dataset")->dataset;
    object->engine().set_dataset(std::move(data));
  });
}

ds_status ds_engine_train_batch(ds_engine* engine, ds_step_report* out_report) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    check_report(out_report);
    give_report(object->engine(), object->engine().train_batch(), out_report);
  });
}

ds_status ds_engine_evaluate(ds_engine* engine, const ds_dataset* dataset, int64_t max_batches,
                             double* out_loss) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    const auto data = look_up(dataset, "dataset");
    double& out = out_param(out_loss, "out_loss");
    out = object->engine().evaluate(*data->dataset, max_batches);
  });
}

ds_status ds_engine_save(ds_engine* engine, const char* folder, const char* tag) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    object->engine().save(path_param(folder, "folder"), tag_param(tag));
  });
}

ds_status ds_engine_save_wait(ds_engine* engine) {
  return guard(__func__, [&] { enter_engine(engine)->engine().wait_for_save(); });
}

ds_status ds_engine_load(ds_engine* engine, const char* folder, const char* tag,
                         const char* options_json) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    const std::string path = path_param(folder, "folder"), name = tag_param(tag);
    object->engine().load(path, name, load_options(options_json));
  });
}

ds_status ds_engine_config(const ds_engine* engine, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
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
    const auto object = enter_engine(engine);
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(object->engine().profile(), 2));
  });
}

ds_status ds_engine_experts(const ds_engine* engine, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(dump_json(object->engine().experts(), 2));
  });
}

ds_status ds_engine_describe(const ds_engine* engine, ds_engine_info* out_info) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    const Engine& of = object->engine();
    ds_engine_info info{};
    info.step = of.progress().steps;
    info.micro_steps = of.progress().micro_steps;
    info.samples = of.progress().samples;
    info.micro_batch_size = of.config().batch.micro_batch;
    info.accumulation_steps = of.config().batch.accumulation;
    info.train_batch_size = of.config().batch.train_batch;
    info.loss_scale = of.loss_scale();
    info.zero_stage = of.config().zero.stage;
    info.compute_dtype = static_cast<ds_dtype>(of.compute_type());
    give_struct(info, out_info, "out_info");
  });
}

void ds_engine_destroy(ds_engine* engine) { end_handle(engine); }
