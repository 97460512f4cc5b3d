// What stands behind a ds_engine and its ds_optimizer. The optimizer's handle is made with the
// engine's, ends with it, and enters the engine: calls on either exclude calls on the other.
#pragma once

#include "capi/handles.h"
#include "capi/model_object.h"
#include "engine/engine.h"

namespace ds::capi {

class EngineObject : public HandleObject {
 public:
  EngineObject(std::string_view config_json, const ModelObject& model,
               std::shared_ptr<Communicator> comm)
      : gate_(model.gate),
        engine_(std::make_unique<Engine>(config_json, model.model, std::move(comm))) {}
  ~EngineObject() override { gate_->end(std::move(engine_)); }

  Engine& engine() const noexcept { return *engine_; }
  ds_optimizer* optimizer = nullptr;  // set before the engine's handle is published

 private:
  std::shared_ptr<ModelGate> gate_;
  std::unique_ptr<Engine> engine_;
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
