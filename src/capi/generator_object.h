// What stands behind a ds_generator: a model that runs, the caller's own or a prepared copy.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "capi/model_object.h"
#include "infer/kv_blocks.h"

namespace ds::capi {

class GeneratorObject : public HandleObject {
 public:
  // Runs the weights of the caller's model as they are at each call, ...
  GeneratorObject(std::shared_ptr<ModelObject> live, const infer::KvOptions& kv)
      : live_(std::move(live)), kv_(kv) {}
  // ... or those of a prepared copy that nobody else has.
  GeneratorObject(std::shared_ptr<models::Model> prepared, const infer::KvOptions& kv)
      : prepared_(std::move(prepared)), kv_(kv) {}

  bool is_prepared() const { return prepared_ != nullptr; }
  const models::Model& model() const { return is_prepared() ? *prepared_ : *live_->model; }

  const infer::KvOptions& kv() const { return kv_; }

  void interrupt() noexcept { interrupted_.store(true, std::memory_order_relaxed); }
  void forget_interrupt() noexcept { interrupted_.store(false, std::memory_order_relaxed); }
  bool interrupted() const noexcept { return interrupted_.load(std::memory_order_relaxed); }

 private:
  friend class RunningModel;
  std::shared_ptr<ModelObject> live_;
  std::shared_ptr<models::Model> prepared_;
  infer::KvOptions kv_;
  std::atomic<bool> interrupted_{false};
};

template <>
struct HandleTraits<ds_generator> {
  using Object = GeneratorObject;
  static constexpr HandleKind kind = HandleKind::kGenerator;
};

// A call that runs the model: alone on the generator, and on the caller's model where it is that.
class RunningModel {
 public:
  explicit RunningModel(const ds_generator* handle)
      : object_(look_up(handle, "generator"), Entry::kExclusive, "generator") {
    if (object_->is_prepared()) {
      use_.emplace(*object_->prepared_);
    } else {
      live_.emplace(object_->live_, "the generator's model");
    }
  }
  models::Model& operator*() const noexcept {
    return object_->is_prepared() ? *object_->prepared_ : **live_;
  }
  models::Model* operator->() const noexcept { return &**this; }
  GeneratorObject& generator() const noexcept { return *object_; }

 private:
  Entered<GeneratorObject> object_;
  std::optional<UsedModel> live_;
  std::optional<models::Model::Use> use_;
};

}  // namespace ds::capi
