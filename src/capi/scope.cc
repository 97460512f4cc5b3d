// Scopes of ds.h: parameters of an engine made whole for the caller's computation or to be changed,
// and gradients that stay where they are.
#include <vector>

#include "capi/args.h"
#include "capi/engine_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"
#include "engine/external_gradients.h"
#include "engine/parameter_scopes.h"

namespace ds::capi {
namespace {

// The parameters' tensors, in modes that have them.
std::vector<Tensor> begin(Engine& engine, const ScopeObject& scope) {
  switch (scope.mode) {
    case DS_SCOPE_MODIFY:
      return engine.scopes().gather(scope.parameters);
    case DS_SCOPE_NO_SYNC:
      engine.gradients().begin_no_sync();
      return {};
    default:
      return engine.scopes().fetch(scope.parameters);
  }
}

// Ends what the scope began; `changes_dropped` drops changes without waiting for other ranks.
void end(Engine& engine, const std::vector<int64_t>& parameters, ds_scope_mode mode,
         bool changes_dropped) {
  switch (mode) {
    case DS_SCOPE_MODIFY:
      if (changes_dropped) return engine.scopes().forget_gathered(parameters);
      return engine.scopes().scatter(parameters, -1);
    case DS_SCOPE_NO_SYNC:
      return engine.gradients().end_no_sync();
    default:
      return engine.scopes().release(parameters);
  }
}

void check_mode(ds_scope_mode mode, int64_t count) {
  DS_CHECK(mode == DS_SCOPE_COMPUTE || mode == DS_SCOPE_MODIFY || mode == DS_SCOPE_NO_SYNC,
           Code::kInvalidArgument, "mode is ", mode,
           "; DS_SCOPE_COMPUTE (1), DS_SCOPE_MODIFY (2) or DS_SCOPE_NO_SYNC (3) is needed");
  DS_CHECK(mode != DS_SCOPE_NO_SYNC || count == 0, Code::kInvalidArgument, "count is ", count,
           "; a scope of mode DS_SCOPE_NO_SYNC holds for all gradients and takes 0 parameters");
}

EnteredEngine enter_engine_of(const ScopeObject& scope) {
  std::shared_ptr<EngineObject> engine = scope.engine.lock();
  DS_CHECK(engine, Code::kState, "the scope's engine was destroyed, which ended the scope");
  return EnteredEngine(std::move(engine), "the scope's engine");
}

void check_open(const ScopeObject& scope) {
  DS_CHECK(scope.open, Code::kState, "the scope is closed");
}

void ended(ScopeObject& scope) noexcept {
  scope.open = false;
  scope.tensors.clear();
}

}  // namespace

ScopeObject::~ScopeObject() {
  const std::shared_ptr<EngineObject> owner = open ? engine.lock() : nullptr;
  if (!owner) return;
  const auto end_it = [list = parameters, what = mode](Engine& of) { end(of, list, what, true); };
  try {
    if (owner->try_enter(/*exclusive=*/true)) {
      struct Leave {
        EngineObject& engine;
        ~Leave() { engine.leave(/*exclusive=*/true); }
      } const leave{*owner};
      try {
        end_it(owner->engine());
        return;
      } catch (const Error& error) {  // another thread's call is inside the model
        if (error.code() != Code::kState) return;
      }
    }
    owner->leave_for_next_call(end_it);
  } catch (...) {  // no memory: the engine's end closes the scope
  }
}

std::vector<int64_t> parameter_list(const Engine& engine, const int64_t* parameters,
                                    int64_t count) {
  const int64_t limit = engine.model()->parameters().size();
  DS_CHECK(count >= 0 && (parameters != nullptr || count <= limit), Code::kInvalidArgument,
           "count is ", count, "; the model has ", limit, " parameters");
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out.push_back(parameters == nullptr ? i : parameters[i]);
  return out;
}

}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_engine_open_scope(ds_engine* engine, const int64_t* parameters, int64_t count,
                               ds_scope_mode mode, ds_scope** out_scope) {
  return guard(__func__, [&] {
    std::shared_ptr<EngineObject> owner = look_up(engine, "engine");
    const EnteredEngine entered(owner);
    ds_scope*& out = out_param(out_scope, "out_scope");
    check_mode(mode, count);
    auto scope = std::make_shared<ScopeObject>(
        owner, parameter_list(entered->engine(), parameters, count), mode);
    // The handle is there before the scope: what is open can be closed.
    ds_scope* const handle = publish<ds_scope>(scope);
    try {
      scope->tensors = begin(entered->engine(), *scope);
      scope->open = true;
    } catch (...) {
      end_handle(handle);
      throw;
    }
    out = handle;
  });
}

ds_status ds_scope_tensor(ds_scope* scope, int64_t position, ds_tensor** out_tensor) {
  return guard(__func__, [&] {
    const auto object = enter(scope, "scope");
    ds_tensor*& out = out_param(out_tensor, "out_tensor");
    DS_CHECK(!object->engine.expired(), Code::kState,
             "the scope's engine was destroyed, which ended the scope");
    check_open(*object);
    check_index(position, std::ssize(object->tensors), "position", "parameters in the scope");
    out = publish_tensor(object->tensors[static_cast<size_t>(position)]);
  });
}

ds_status ds_scope_commit(ds_scope* scope, int32_t modifier_rank) {
  return guard(__func__, [&] {
    const auto object = enter(scope, "scope");
    const auto engine = enter_engine_of(*object);
    check_open(*object);
    DS_CHECK(
        object->mode == DS_SCOPE_MODIFY, Code::kState,
        object->mode == DS_SCOPE_COMPUTE
            ? "the scope was opened to compute (DS_SCOPE_COMPUTE), its parameters are only read"
            : "the scope was opened for gradients (DS_SCOPE_NO_SYNC), it has no parameters");
    DS_CHECK(modifier_rank >= 0, Code::kInvalidArgument, "modifier_rank is ", modifier_rank,
             "; a rank is needed (ds_scope_close drops the changes)");
    engine->engine().scopes().scatter(object->parameters, modifier_rank);
    ended(*object);
  });
}

ds_status ds_scope_close(ds_scope* scope) {
  return guard(__func__, [&] {
    const auto object = enter(scope, "scope");
    if (!object->open || object->engine.expired()) {
      ended(*object);
      return;
    }
    const auto engine = enter_engine_of(*object);
    end(engine->engine(), object->parameters, object->mode, /*changes_dropped=*/false);
    ended(*object);
  });
}

void ds_scope_destroy(ds_scope* scope) { end_handle(scope); }
