// The optimizer of an engine, as ds.h shows it.
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
    out_param(out_lr, "out_lr") = object->engine().lr();
  });
}

ds_status ds_optimizer_set_lr(ds_optimizer* optimizer, double lr) {
  return guard(__func__, [&] { enter_engine_of(optimizer)->engine().set_lr(lr); });
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
    object->engine().set_optimizer_state(parameter, kind, input->tensor);
  });
}
