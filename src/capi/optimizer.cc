// The optimizer of an engine, as ds.h shows it.
#include "base/json.h"
#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "engine/parameter_values.h"

namespace ds::capi {
namespace {

// Enters the engine whose optimizer this is.
EnteredEngine enter_engine_of(const ds_optimizer* optimizer) {
  std::shared_ptr<EngineObject> engine = look_up(optimizer, "optimizer")->engine.lock();
  DS_CHECK(engine, Code::kState, "the optimizer's engine was destroyed");
  return EnteredEngine(std::move(engine), "the optimizer's engine");
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_optimizer(ds_engine* engine, ds_optimizer** out_optimizer) {
  return guard(__func__, [&] {
    ds_optimizer*& out = out_param(out_optimizer, "out_optimizer");
    out = publish<ds_optimizer>(std::make_shared<OptimizerObject>(look_up(engine, "engine")));
  });
}

ds_status ds_optimizer_describe(ds_optimizer* optimizer, ds_optimizer_info* out_info) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    const std::vector<double>& rates = object->engine().rates();
    ds_optimizer_info info{};
    info.steps = object->engine().optimizer_steps();
    info.rate_count = std::ssize(rates);
    info.lr = rates.empty() ? 0 : rates.front();
    give_struct(info, out_info, "out_info");
  });
}

ds_status ds_optimizer_rate(ds_optimizer* optimizer, int64_t index, double* out_lr) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    double& out = out_param(out_lr, "out_lr");
    const std::vector<double>& rates = object->engine().rates();
    check_index(index, std::ssize(rates), "index", "learning rates");
    out = rates[static_cast<size_t>(index)];
  });
}

ds_status ds_optimizer_set_lr(ds_optimizer* optimizer, double lr) {
  return guard(__func__, [&] { enter_engine_of(optimizer)->engine().set_lr(lr); });
}

ds_status ds_optimizer_state_names(ds_optimizer* optimizer, int64_t parameter, char** out_json) {
  return guard(__func__, [&] {
    const auto object = enter_engine_of(optimizer);
    char*& out = out_param(out_json, "out_json");
    const nn::Parameter& p = parameter_at(*object->engine().model(), parameter);
    out = make_c_string(dump_json(Json(object->engine().values().optimizer_states(p.name))));
  });
}

void ds_optimizer_destroy(ds_optimizer* optimizer) { end_handle(optimizer); }
