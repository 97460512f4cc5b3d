// What stands behind a ds_engine, a ds_optimizer and a ds_scope. The latter two do not keep the
// engine; their calls enter it, so that calls on any of the three exclude each other.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "capi/handles.h"
#include "capi/model_object.h"
#include "capi/tensor_object.h"
#include "engine/engine.h"

namespace ds::capi {

class EngineObject : public HandleObject {
 public:
  EngineObject(std::string_view config_json, const ReadOptions& reading, const ModelObject& model,
               std::shared_ptr<Communicator> comm)
      : gate_(model.gate),
        engine_(std::make_unique<Engine>(config_json, model.model, std::move(comm), reading)) {}
  ~EngineObject() override { gate_->end(std::move(engine_)); }

  Engine& engine() const noexcept { return *engine_; }

  // What is left to do in the engine by a handle that ended while a call was inside: done by the
  // next call.
  void leave_for_next_call(std::function<void(Engine&)> what) {
    const std::lock_guard lock(mutex_);
    left_.push_back(std::move(what));
  }
  void do_what_is_left() {
    std::vector<std::function<void(Engine&)>> left;
    {
      const std::lock_guard lock(mutex_);
      left.swap(left_);
    }
    for (size_t i = 0; i < left.size(); ++i) {
      try {
        left[i](*engine_);
      } catch (const Error& error) {
        // Another call is inside the model still: the next call does it.
        if (error.code() == Code::kState) leave_for_next_call(std::move(left[i]));
      }
    }
  }

 private:
  std::shared_ptr<ModelGate> gate_;
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  std::vector<std::function<void(Engine&)>> left_;
};

class OptimizerObject : public HandleObject {
 public:
  explicit OptimizerObject(std::weak_ptr<EngineObject> value) : engine(std::move(value)) {}
  const std::weak_ptr<EngineObject> engine;
};

// What holds until the scope ends: parameters that are whole, gradients that are not reduced.
class ScopeObject : public HandleObject {
 public:
  ScopeObject(std::weak_ptr<EngineObject> value, std::vector<int64_t> list, ds_scope_mode what)
      : engine(std::move(value)), parameters(std::move(list)), mode(what) {}
  ~ScopeObject() override;

  const std::weak_ptr<EngineObject> engine;
  const std::vector<int64_t> parameters;
  const ds_scope_mode mode;
  std::vector<Tensor> tensors;
  bool open = false;
};

template <>
struct HandleTraits<ds_scope> {
  using Object = ScopeObject;
  static constexpr HandleKind kind = HandleKind::kScope;
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

// An engine entered for a call, after what ended handles left to do.
class EnteredEngine : public Entered<EngineObject> {
 public:
  explicit EnteredEngine(std::shared_ptr<EngineObject> engine, const char* parameter = "engine")
      : Entered(std::move(engine), Entry::kExclusive, parameter) {
    (*this)->do_what_is_left();
  }
};
inline EnteredEngine enter_engine(const ds_engine* engine) {
  return EnteredEngine(look_up(engine, "engine"));
}

// The caller's list of parameters; NULL counts from 0.
std::vector<int64_t> parameter_list(const Engine& engine, const int64_t* parameters, int64_t count);

}  // namespace ds::capi
