// What stands behind a ds_engine and its ds_optimizer. The optimizer's handle is made with the
// engine's, ends with it, and enters the engine: calls on either exclude calls on the other.
#pragma once

#include "capi/handles.h"
#include "engine/engine.h"

namespace ds::capi {

class EngineObject : public HandleObject {
 public:
  EngineObject(std::string_view config_json, std::shared_ptr<models::Model> model,
               std::shared_ptr<Communicator> comm)
      : engine(config_json, std::move(model), std::move(comm)) {}
  Engine engine;
  ds_optimizer* optimizer = nullptr;  // set before the engine's handle is published
};

class OptimizerObject : public HandleObject {
 public:
  explicit OptimizerObject(std::weak_ptr<EngineObject> value) : engine(std::move(value)) {}
  const std::weak_ptr<EngineObject> engine;
};

template <>
struct HandleTraits<ds_engine> {
  using Object = EngineObject;
  static constexpr HandleKind kind = HandleKind::kEngine;
};

template <>
struct HandleTraits<ds_optimizer> {
  using Object = OptimizerObject;
  static constexpr HandleKind kind = HandleKind::kOptimizer;
};

}  // namespace ds::capi
