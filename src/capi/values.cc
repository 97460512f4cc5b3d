// Values of an engine's parameters in ds.h: masters, gradients and optimizer states, whole or the
// part of this process.
#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"
#include "engine/external_gradients.h"
#include "engine/parameter_values.h"

namespace ds::capi {
namespace {

// Which values a call means, checked.
struct Values {
  std::string parameter;
  ds_value_kind kind;
  std::string state;
  bool local;

  // As the engine names them.
  std::string what() const {
    if (kind == DS_VALUE_PARAMETER) return "parameter";
    return kind == DS_VALUE_GRADIENT ? "gradient" : state;
  }
};

Values values_param(const Engine& engine, int64_t parameter, ds_value_kind kind, const char* state,
                    ds_extent extent) {
  Values out{parameter_at(*engine.model(), parameter).name, kind, {}, extent == DS_EXTENT_LOCAL};
  DS_CHECK(kind >= DS_VALUE_PARAMETER && kind <= DS_VALUE_STATE, Code::kInvalidArgument, "kind is ",
           kind, "; DS_VALUE_PARAMETER (1), _GRADIENT (2) or _STATE (3) is needed");
  DS_CHECK(extent == DS_EXTENT_WHOLE || extent == DS_EXTENT_LOCAL, Code::kInvalidArgument,
           "extent is ", extent, "; DS_EXTENT_WHOLE (1) or DS_EXTENT_LOCAL (2) is needed");
  if (kind == DS_VALUE_STATE) {
    out.state = utf8_param(state, "state");
    DS_CHECK(out.state != "parameter" && out.state != "gradient", Code::kNotFound,
             "the optimizer has no state ", out.state);
  } else {
    DS_CHECK(state == nullptr, Code::kInvalidArgument,
             "state must be NULL unless kind is DS_VALUE_STATE");
  }
  return out;
}

Tensor whole_values(Engine& engine, const Values& values) {
  switch (values.kind) {
    case DS_VALUE_PARAMETER: {
      const models::Model::Use use(*engine.model());
      return engine.model()->get(values.parameter);
    }
    case DS_VALUE_GRADIENT:
      return engine.gradients().get(values.parameter);
    default:
      return engine.values().optimizer_state(values.parameter, values.state);
  }
}

void set_whole_values(Engine& engine, const Values& values, const TensorObject& given) {
  switch (values.kind) {
    case DS_VALUE_PARAMETER: {
      const models::Model::Use use(*engine.model());
      return engine.model()->set(values.parameter, host_copy(given));
    }
    case DS_VALUE_GRADIENT:
      return engine.gradients().set(values.parameter, given.tensor);
    default:
      return engine.values().set_optimizer_state(values.parameter, values.state, host_copy(given));
  }
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_get_values(ds_engine* engine, int64_t parameter, ds_value_kind kind,
                               const char* state, ds_extent extent, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const Values values = values_param(object->engine(), parameter, kind, state, extent);
    out = publish_tensor(values.local
                             ? object->engine().values().local(values.parameter, values.what())
                             : whole_values(object->engine(), values));
  });
}

ds_status ds_engine_set_values(ds_engine* engine, int64_t parameter, ds_value_kind kind,
                               const char* state, ds_extent extent, const ds_tensor* value) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    const Values values = values_param(object->engine(), parameter, kind, state, extent);
    const auto given = enter(value, "value", Entry::kShared);
    if (values.local) {
      object->engine().values().set_local(values.parameter, values.what(), host_copy(*given));
    } else {
      set_whole_values(object->engine(), values, *given);
    }
  });
}

ds_status ds_engine_local_range(ds_engine* engine, int64_t parameter, int64_t* out_first,
                                int64_t* out_count) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    int64_t& first = out_param(out_first, "out_first");
    int64_t& count = out_param(out_count, "out_count");
    const nn::Parameter& p = parameter_at(*object->engine().model(), parameter);
    const zero::FlatRange range = object->engine().values().local_range(p.name);
    first = range.begin;
    count = range.elements();
  });
}
