// The caller's own gradients in ds.h, their loss and their accumulation boundary.
#include <deque>
#include <optional>
#include <vector>

#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"
#include "engine/external_gradients.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_add_gradients(ds_engine* engine, const int64_t* parameters,
                                  ds_tensor* const* gradients, int64_t count) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    DS_CHECK(gradients != nullptr, Code::kInvalidArgument, "gradients is NULL");
    const int64_t limit = object->engine().model()->parameters().size();
    DS_CHECK(count >= 0 && (parameters != nullptr || count <= limit), Code::kInvalidArgument,
             "count is ", count, "; the model has ", limit, " parameters");
    const auto size = static_cast<size_t>(count);
    std::deque<Entered<TensorObject>> entered;
    std::vector<const Tensor*> tensors;
    tensors.reserve(size);
    for (int64_t i = 0; i < count; ++i) {
      const char* const where = "an element of gradients";
      entered.emplace_back(look_up(gradients[i], where), Entry::kShared, where);
      tensors.push_back(&entered.back()->tensor);
    }
    object->engine().gradients().add(
        parameters == nullptr ? std::span<const int64_t>() : std::span(parameters, size), tensors);
  });
}

ds_status ds_engine_view_gradient(ds_engine* engine, int64_t parameter, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    const nn::Parameter& p = parameter_at(*object->engine().model(), parameter);
    out = publish_tensor(object->engine().gradients().view(p.name));
  });
}

ds_status ds_engine_set_loss(ds_engine* engine, double loss) {
  return guard(__func__, [&] { enter_engine(engine)->engine().gradients().set_loss(loss); });
}

ds_status ds_engine_discard_gradients(ds_engine* engine) {
  return guard(__func__, [&] { enter_engine(engine)->engine().discard_gradients(); });
}

ds_status ds_engine_set_boundary(ds_engine* engine, int32_t boundary) {
  return guard(__func__, [&] {
    const auto object = enter_engine(engine);
    DS_CHECK(boundary >= -1 && boundary <= 1, Code::kInvalidArgument,
             "boundary is 1 (steps update), 0 (they do not) or -1 (the engine counts), not ",
             boundary);
    object->engine().set_boundary(boundary < 0 ? std::nullopt : std::optional<bool>(boundary == 1));
  });
}
