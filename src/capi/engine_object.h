// What stands behind a ds_engine and its ds_optimizer. The optimizer's handle is made with the
// engine's, ends with it, and enters the engine: calls on either exclude calls on the other.
#pragma once

#include <utility>
#include <vector>

#include "capi/handles.h"
#include "capi/model_object.h"
#include "capi/tensor_object.h"
#include "engine/engine.h"

namespace ds::capi {

// Handles of tensors that end with a call of the caller's or with the engine, by parameter.
class HeldTensors {
 public:
  ~HeldTensors() {
    for (const auto& [index, handle] : held_) end_handle(handle);
  }
  // Room for so many more, so that add() does not fail.
  void reserve(size_t count) { held_.reserve(held_.size() + count); }
  void add(int64_t index, ds_tensor* handle) { held_.emplace_back(index, handle); }
  // The last one of this parameter.
  void end(int64_t index) noexcept {
    for (size_t i = held_.size(); i-- > 0;) {
      if (held_[i].first != index) continue;
      end_handle(held_[i].second);
      held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
      return;
    }
  }

 private:
  std::vector<std::pair<int64_t, ds_tensor*>> held_;
};

class EngineObject : public HandleObject {
 public:
  EngineObject(std::string_view config_json, const ReadOptions& reading, const ModelObject& model,
               std::shared_ptr<Communicator> comm)
      : gate_(model.gate),
        engine_(std::make_unique<Engine>(config_json, model.model, std::move(comm), reading)) {}
  ~EngineObject() override { gate_->end(std::move(engine_)); }

  Engine& engine() const noexcept { return *engine_; }
  ds_optimizer* optimizer = nullptr;  // set before the engine's handle is published
  HeldTensors fetched, gathered;

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
