// What stands behind a ds_model, and the gate that keeps an engine from ending while a call on the
// model is inside.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "capi/args.h"
#include "capi/handles.h"
#include "engine/engine.h"
#include "models/model.h"

namespace ds::capi {

// An engine that ends changes its model's storage. Handles may be destroyed at any moment, so when
// a call on the model is inside (another thread's, or the one whose callback destroys the engine),
// the engine is left here and ends with that call. A model has one engine at a time.
class ModelGate {
 public:
  // A call on the model handle, which the handle's own entry keeps to one at a time.
  class Inside {
   public:
    explicit Inside(ModelGate& gate) : gate_(gate) {
      const std::lock_guard lock(gate_.mutex_);
      gate_.inside_ = true;
    }
    ~Inside() {
      const std::lock_guard lock(gate_.mutex_);
      gate_.departing_.reset();
      gate_.inside_ = false;
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    ModelGate& gate_;
  };

  void end(std::unique_ptr<Engine> engine) noexcept {
    const std::lock_guard lock(mutex_);
    if (inside_) {
      departing_ = std::move(engine);
    } else {
      engine.reset();
    }
  }

 private:
  std::recursive_mutex mutex_;  // a release function that runs inside may use the library
  bool inside_ = false;
  std::unique_ptr<Engine> departing_;
};

class ModelObject : public HandleObject {
 public:
  explicit ModelObject(std::shared_ptr<models::Model> value) : model(std::move(value)) {}
  const std::shared_ptr<models::Model> model;
  const std::shared_ptr<ModelGate> gate = std::make_shared<ModelGate>();
};

// The parameter of an index that a caller gives; throws kInvalidArgument without one.
inline const nn::Parameter& parameter_at(const models::Model& model, int64_t index) {
  check_index(index, model.parameters().size(), "parameter", "parameters in the model");
  return model.parameters()[static_cast<nn::ParamId>(index)];
}

template <>
struct HandleTraits<ds_model> {
  using Object = ModelObject;
  static constexpr HandleKind kind = HandleKind::kModel;
};

// A call that uses the weights: alone on the handle, behind the gate, and with the model's ticket,
// which calls on its engine take too.
class UsedModel {
 public:
  UsedModel(const ds_model* handle, const char* parameter)
      : UsedModel(look_up(handle, parameter), parameter) {}
  UsedModel(std::shared_ptr<ModelObject> object, const char* parameter)
      : object_(std::move(object), Entry::kExclusive, parameter),
        inside_(*object_->gate),
        use_(*object_->model) {}
  models::Model& operator*() const noexcept { return *object_->model; }
  models::Model* operator->() const noexcept { return object_->model.get(); }

 private:
  Entered<ModelObject> object_;
  ModelGate::Inside inside_;
  models::Model::Use use_;
};

}  // namespace ds::capi
