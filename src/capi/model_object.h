// What stands behind a ds_model.
#pragma once

#include "capi/handles.h"
#include "models/model.h"

namespace ds::capi {

class ModelObject : public HandleObject {
 public:
  explicit ModelObject(std::shared_ptr<models::Model> value) : model(std::move(value)) {}
  const std::shared_ptr<models::Model> model;
};

template <>
struct HandleTraits<ds_model> {
  using Object = ModelObject;
  static constexpr HandleKind kind = HandleKind::kModel;
};

}  // namespace ds::capi
