// Parameters that callers use, change and share: made whole for a program's own computation, whole
// for a scope in which one rank may change them, or the part that this rank owns.
#include <algorithm>

#include "base/checksum.h"
#include "engine/agreement.h"
#include "engine/engine.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

constexpr std::string_view kParameterValues = "parameter";
constexpr std::string_view kGradientValues = "gradient";

uint64_t checksum(const Tensor& x) {
  return xxh3_64({static_cast<const std::byte*>(x.raw()), static_cast<size_t>(x.bytes())});
}

}  // namespace

std::vector<nn::ParamId> Engine::parameter_ids(std::span<const int64_t> indices,
                                               const char* what) const {
  std::vector<nn::ParamId> ids;
  ids.reserve(indices.size());
  for (const int64_t index : indices) {
    DS_CHECK(index >= 0 && index < model_->parameters().size(), Code::kInvalidArgument, what,
             " names parameter ", index, "; the model has ", model_->parameters().size());
    ids.push_back(static_cast<nn::ParamId>(index));
  }
  return ids;
}

void Engine::check_nothing_held(const char* what) const {
  const auto first = [&](const auto& holds) {
    for (nn::ParamId id = 0; id < model_->parameters().size(); ++id) {
      if (holds(static_cast<size_t>(id))) return printable(model_->parameters()[id].name);
    }
    return std::string();
  };
  DS_CHECK(fetched_count_ == 0, Code::kState, what, " while parameters are fetched, such as ",
           first([&](size_t i) { return fetched_[i] > 0; }),
           "; close the scopes first (ds_scope_close)");
  DS_CHECK(gathered_count_ == 0, Code::kState, what, " while parameters are gathered, such as ",
           first([&](size_t i) { return static_cast<bool>(gathered_[i]); }),
           "; end the scope first (ds_scope_commit, ds_scope_close)");
}

std::vector<Tensor> Engine::fetch_parameters(std::span<const int64_t> indices) {
  DS_CHECK(!model_->has_architecture(), Code::kUnsupported,
           "a built-in model fetches its parameters itself; for whole values open a scope of mode "
           "DS_SCOPE_MODIFY");
  DS_CHECK(gathered_count_ == 0, Code::kState,
           "parameters are gathered and may change; scatter them before any are fetched");
  std::vector<nn::ParamId> ids = parameter_ids(indices, "a fetch");
  const models::Model::Use use(*model_);
  zero::ParameterState& state = model_->state();
  if (!pass_open_) state.begin_pass();
  pass_open_ = true;
  fetched_.resize(static_cast<size_t>(model_->parameters().size()));
  own_uses_.reserve(own_uses_.size() + 1);
  std::vector<Tensor> out = state.acquire_all(ids);
  for (const nn::ParamId id : ids) ++fetched_[static_cast<size_t>(id)];
  fetched_count_ += std::ssize(ids);
  if (fetched_count_ > 0) model_->set_step_open(true);
  if (state.gradients_leave_early()) own_uses_.push_back({OwnUse::Kind::kFetch, std::move(ids)});
  return out;
}

void Engine::release_parameters(std::span<const int64_t> indices) {
  std::vector<nn::ParamId> ids = parameter_ids(indices, "a release");
  const models::Model::Use use(*model_);
  std::vector<int> left = fetched_;
  left.resize(static_cast<size_t>(model_->parameters().size()));
  for (const nn::ParamId id : ids) {
    DS_CHECK(--left[static_cast<size_t>(id)] >= 0, Code::kState, "parameter ",
             printable(model_->parameters()[id].name),
             " is released, but not fetched, or not so many times");
  }
  own_uses_.reserve(own_uses_.size() + 1);
  zero::ParameterState& state = model_->state();
  for (const nn::ParamId id : ids) state.release(id);
  fetched_ = std::move(left);
  fetched_count_ -= std::ssize(ids);
  if (phase_ != Phase::kForwardDone) weights_are_free();
  if (state.gradients_leave_early()) own_uses_.push_back({OwnUse::Kind::kRelease, std::move(ids)});
}

// Before the engine ends: what the caller did not release.
void Engine::let_go() {
  if (fetched_count_ == 0) return;
  for (nn::ParamId id = 0; id < model_->parameters().size(); ++id) {
    for (int& n = fetched_[static_cast<size_t>(id)]; n > 0; --n) model_->state().release(id);
  }
  fetched_count_ = 0;
}

std::vector<Tensor> Engine::gather_parameters(std::span<const int64_t> indices) {
  DS_CHECK(phase_ == Phase::kIdle && accumulated_ == 0, Code::kState,
           "parameters cannot be gathered in the middle of a step; end it first");
  DS_CHECK(fetched_count_ == 0, Code::kState,
           "parameters are fetched, and what is gathered may change; release them first");
  const std::vector<nn::ParamId> ids = parameter_ids(indices, "a gather");
  gathered_.resize(static_cast<size_t>(model_->parameters().size()));
  std::vector<bool> seen(gathered_.size());
  for (const nn::ParamId id : ids) {
    const auto i = static_cast<size_t>(id);
    DS_CHECK(!gathered_[i] && !seen[i], Code::kState, "parameter ",
             printable(model_->parameters()[id].name),
             " is gathered already; two scopes cannot both change it");
    seen[i] = true;
  }
  const models::Model::Use use(*model_);
  std::vector<Tensor> out;
  for (const nn::ParamId id : ids) {
    out.push_back(copied_to_host(model_->state().read_master(context(), id), model_->host()));
  }
  gathered_sums_.resize(gathered_.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<size_t>(ids[i]);
    gathered_[id] = out[i];
    if (config_.zero.sanity_checks) gathered_sums_[id] = checksum(out[i]);
  }
  gathered_count_ += std::ssize(ids);
  if (gathered_count_ > 0) model_->set_step_open(true);
  return out;
}

// With enable_sanity_checks: a scope without a modifier has nothing to drop.
void Engine::check_unchanged(std::span<const nn::ParamId> ids) {
  if (!config_.zero.sanity_checks) return;
  agree(context(), *comm_, "ending a gather", [&] {
    for (const nn::ParamId id : ids) {
      const auto i = static_cast<size_t>(id);
      DS_CHECK(checksum(gathered_[i]) == gathered_sums_[i], Code::kState, "parameter ",
               printable(model_->parameters()[id].name), " was changed on rank ", comm_->rank(),
               " while it was gathered, and without a modifier_rank the change is dropped; give "
               "the rank whose values count, or change nothing");
    }
  });
}

void Engine::scatter_parameters(std::span<const int64_t> indices, int modifier) {
  const std::vector<nn::ParamId> ids = parameter_ids(indices, "a scatter");
  DS_CHECK(modifier >= -1 && modifier < comm_->size(), Code::kInvalidArgument, "modifier_rank is ",
           modifier, "; a rank of the group of ", comm_->size(), ", or -1 for none, is needed");
  std::vector<bool> seen(static_cast<size_t>(model_->parameters().size()));
  for (const nn::ParamId id : ids) {
    const auto i = static_cast<size_t>(id);
    DS_CHECK(i < gathered_.size() && gathered_[i] && !seen[i], Code::kState, "parameter ",
             printable(model_->parameters()[id].name), " is scattered, but not gathered");
    seen[i] = true;
  }
  const models::Model::Use use(*model_);
  if (modifier < 0) check_unchanged(ids);
  for (const nn::ParamId id : ids) {
    Tensor& value = gathered_[static_cast<size_t>(id)];
    if (modifier >= 0) {
      const std::string& name = model_->parameters()[id].name;
      comm_->broadcast(value, modifier, {.label = name, .same_label = true})->wait();
      model_->state().write_master(context(), id, operand(value));
    }
    value = Tensor();
    --gathered_count_;
  }
  if (gathered_count_ == 0) model_->set_step_open(false);
}

void Engine::forget_gathered(std::span<const int64_t> indices) {
  for (const nn::ParamId id : parameter_ids(indices, "the end of a gather")) {
    Tensor& value = gathered_[static_cast<size_t>(id)];
    if (!value) continue;
    value = Tensor();
    --gathered_count_;
  }
  if (gathered_count_ == 0) model_->set_step_open(false);
}

zero::FlatRange Engine::local_range(const std::string& name) {
  const zero::OwnedPart part = model_->state().layout().part(model_->parameters().find(name));
  return {part.first, part.first + part.count};
}

Tensor Engine::local_values(const std::string& name, const std::string& what) {
  const models::Model::Use use(*model_);
  const OpContext ctx = context();
  const nn::ParamId id = model_->parameters().find(name);
  const int64_t count = model_->state().layout().part(id).count;
  Tensor out = Tensor::empty(model_->host(), DType::kFloat32, {count}, MemoryTag::kOther);
  if (what == kParameterValues) {
    copy_tensor(model_->state().read_owned_master(ctx, id).view({count}), out);
    return out;
  }
  if (what == kGradientValues) {
    model_->state().materialize_gradients(ctx);
    Tensor values = model_->state().state_context(ctx).workspace(DType::kFloat32, {count});
    model_->state().read_owned_gradient(ctx, trainable(name), values);
    copy_tensor(values, out);
    return out;
  }
  const size_t place = updater_->place(trainable(name));
  const optim::OwnedRange owned = updater_->optimizer().owned(place);
  updater_->optimizer().read_state_range(place, what, owned.begin, owned.end, out.data<float>());
  return out;
}

void Engine::set_local_values(const std::string& name, const std::string& what,
                              const Tensor& values) {
  const nn::ParamId id = model_->parameters().find(name);
  const zero::FlatRange range = local_range(name);
  check_tensor(values, name.c_str(), DType::kFloat32, {range.elements()});
  DS_CHECK(values.contiguous(), Code::kInvalidArgument, name, " must be packed");
  const OpContext ctx = context();
  zero::ParameterState& state = model_->state();
  if (what == kGradientValues) {
    check_gradients_open();
    const models::Model::Use use(*model_);
    begin_step_clock();
    state.materialize_gradients(ctx);
    state.write_owned_gradient(ctx, trainable(name), operand(values));
    phase_ = Phase::kBackwardDone;
    return;
  }
  DS_CHECK(phase_ != Phase::kForwardDone, Code::kState,
           "the last forward still waits for its backward");
  check_nothing_held("values are set");
  const models::Model::Use use(*model_);
  if (what == kParameterValues) {
    state.write_owned_master(ctx, id, 0, operand(values));
    state.owned_master_written(ctx, id);
    return;
  }
  const size_t place = updater_->place(trainable(name));
  const optim::OwnedRange owned = updater_->optimizer().owned(place);
  updater_->optimizer().write_state_range(place, what, owned.begin, owned.end,
                                          values.data<float>());
}

}  // namespace ds
