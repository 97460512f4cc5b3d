// The optimizer of an engine, as ds.h shows it.
#include "base/json.h"
#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"

namespace ds::capi {
namespace {

// Enters the engine whose optimizer this is.
Entered<EngineObject> enter_engine_of(const ds_optimizer* optimizer) {
  std::shared_ptr<EngineObject> engine = look_up(optimizer, "optimizer")->engine.lock();
  DS_CHECK(engine, Code::kInvalidArgument,
           "optimizer is an optimizer handle whose engine was destroyed");
  return {std::move(engine), Entry::kExclusive, "the optimizer's engine"};
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_optimizer_step_count(ds_optimizer* optimizer, int64_t* out_steps) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    out_param(out_steps, "out_steps") = object->engine().optimizer_steps();
  });
}

ds_status ds_optimizer_lr(ds_optimizer* optimizer, double* out_lr) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    double& out = out_param(out_lr, "out_lr");
    const std::vector<double>& rates = object->engine().rates();
    out = rates.empty() ? 0 : rates.front();
  });
}

ds_status ds_optimizer_rate_count(ds_optimizer* optimizer, int64_t* out_count) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    out_param(out_count, "out_count") = static_cast<int64_t>(object->engine().rates().size());
  });
}

ds_status ds_optimizer_rate(ds_optimizer* optimizer, int64_t index, double* out_lr) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    double& out = out_param(out_lr, "out_lr");
    const std::vector<double>& rates = object->engine().rates();
    DS_CHECK(index >= 0 && index < static_cast<int64_t>(rates.size()), Code::kInvalidArgument,
             "index is ", index, "; the optimizer has ", rates.size(), " learning rates");
    out = rates[static_cast<size_t>(index)];
  });
}

ds_status ds_optimizer_set_lr(ds_optimizer* optimizer, double lr) {
  return guard(__func__, [&] { enter_engine_of(optimizer)->engine().set_lr(lr); });
}

ds_status ds_optimizer_state_names(ds_optimizer* optimizer, const char* name, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    char*& out = out_param(out_json, "out_json");
    const Json names = object->engine().optimizer_states(std::string(utf8_param(name, "name")));
    out = make_c_string(dump_json(names));
  });
}

ds_status ds_optimizer_get_state(ds_optimizer* optimizer, const char* name, const char* state,
                                 ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const std::string parameter(utf8_param(name, "name"));
    const std::string kind(utf8_param(state, "state"));
    out = publish_tensor(object->engine().optimizer_state(parameter, kind));
  });
}

ds_status ds_optimizer_set_state(ds_optimizer* optimizer, const char* name, const char* state,
                                 const ds_tensor* value) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    const std::string parameter(utf8_param(name, "name"));
    const std::string kind(utf8_param(state, "state"));
    const auto input = enter(value, "value", Entry::kShared);
    object->engine().set_optimizer_state(parameter, kind, host_copy(*input));
  });
}
