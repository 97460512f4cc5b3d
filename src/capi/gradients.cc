// Gradients of ds.h: the caller's own go in, gathered ones come out.
#include <deque>
#include <optional>
#include <vector>

#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_add_gradient(ds_engine* engine, const char* name, const ds_tensor* gradient) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const std::string parameter(utf8_param(name, "name"));
    const auto input = enter(gradient, "gradient", Entry::kShared);
    const int64_t index = object->engine().model()->parameters().find(parameter);
    const Tensor* const tensor = &input->tensor;
    object->engine().add_gradients({&index, 1}, {&tensor, 1});
  });
}

ds_status ds_engine_add_gradients(ds_engine* engine, const int64_t* indices,
                                  ds_tensor* const* gradients, int64_t count) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    DS_CHECK(gradients != nullptr, Code::kInvalidArgument, "gradients is NULL");
    const int64_t limit = object->engine().model()->parameters().size();
    DS_CHECK(count >= 0 && (indices != nullptr || count <= limit), Code::kInvalidArgument,
             "count is ", count, "; the model has ", limit, " parameters");
    std::deque<Entered<TensorObject>> entered;
    std::vector<const Tensor*> tensors;
    tensors.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const char* const where = "an element of gradients";
      entered.emplace_back(look_up(gradients[i], where), Entry::kShared, where);
      tensors.push_back(&entered.back()->tensor);
    }
    const auto size = static_cast<size_t>(count);
    object->engine().add_gradients(
        indices == nullptr ? std::span<const int64_t>() : std::span(indices, size), tensors);
  });
}

ds_status ds_engine_set_gradient(ds_engine* engine, const char* name, const ds_tensor* gradient) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    const std::string parameter(utf8_param(name, "name"));
    const auto input = enter(gradient, "gradient", Entry::kShared);
    object->engine().set_gradient(parameter, input->tensor);
  });
}

ds_status ds_engine_get_gradient(ds_engine* engine, const char* name, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    out = publish_tensor(object->engine().gradient(std::string(utf8_param(name, "name"))));
  });
}

ds_status ds_engine_gradient_view(ds_engine* engine, const char* name, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    out = publish_tensor(object->engine().gradient_view(std::string(utf8_param(name, "name"))));
  });
}

ds_status ds_engine_set_loss(ds_engine* engine, double loss) {
  return guard(__func__, [&] { enter(engine, "engine")->engine().set_loss(loss); });
}

ds_status ds_engine_discard_gradients(ds_engine* engine) {
  return guard(__func__, [&] { enter(engine, "engine")->engine().discard_gradients(); });
}

ds_status ds_engine_set_boundary(ds_engine* engine, int32_t boundary) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    DS_CHECK(boundary >= -1 && boundary <= 1, Code::kInvalidArgument,
             "boundary is 1 (steps update), 0 (they do not) or -1 (the engine counts), not ",
             boundary);
    object->engine().set_boundary(boundary < 0 ? std::nullopt : std::optional<bool>(boundary == 1));
  });
}

ds_status ds_engine_loss_scale(ds_engine* engine, double* out_scale) {
  return guard(__func__, [&] {
    const auto object = enter(engine, "engine");
    out_param(out_scale, "out_scale") = object->engine().loss_scale();
  });
}
