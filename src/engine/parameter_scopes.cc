#include "engine/parameter_scopes.h"

#include "base/checksum.h"
#include "base/text.h"
#include "engine/agreement.h"
#include "engine/combinations.h"
#include "engine/open_step.h"
#include "engine/run_context.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

uint64_t checksum(const Tensor& x) {
  return xxh3_64({static_cast<const std::byte*>(x.raw()), static_cast<size_t>(x.bytes())});
}

}  // namespace

std::vector<nn::ParamId> ParameterScopes::parameter_ids(std::span<const int64_t> indices,
                                                        const char* what) const {
  std::vector<nn::ParamId> ids;
  ids.reserve(indices.size());
  for (const int64_t index : indices) {
    DS_CHECK(index >= 0 && index < run_.model->parameters().size(), Code::kInvalidArgument, what,
             " names parameter ", index, "; the model has ", run_.model->parameters().size());
    ids.push_back(static_cast<nn::ParamId>(index));
  }
  return ids;
}

void ParameterScopes::check_nothing_held(const char* what) const {
  const auto first = [&](const auto& holds) {
    for (nn::ParamId id = 0; id < run_.model->parameters().size(); ++id) {
      if (holds(static_cast<size_t>(id))) return printable(run_.model->parameters()[id].name);
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

void ParameterScopes::free_weights() { run_.model->set_step_open(holds_any()); }

std::vector<Tensor> ParameterScopes::fetch(std::span<const int64_t> indices) {
  check_call(Refusal::kFetchOfBuiltInModel, situation_of(run_));
  DS_CHECK(gathered_count_ == 0, Code::kState,
           "parameters are gathered and may change; scatter them before any are fetched");
  std::vector<nn::ParamId> ids = parameter_ids(indices, "a fetch");
  const models::Model::Use use(*run_.model);
  zero::TrainState& state = *run_.state;
  pass_.begin(state);
  fetched_.resize(static_cast<size_t>(run_.model->parameters().size()));
  pass_.reserve_one();
  std::vector<Tensor> out = state.weights().acquire_all(ids);
  for (const nn::ParamId id : ids) ++fetched_[static_cast<size_t>(id)];
  fetched_count_ += std::ssize(ids);
  if (fetched_count_ > 0) run_.model->set_step_open(true);
  if (state.gradients().leave_early()) pass_.add(CallerPass::Kind::kFetch) = std::move(ids);
  return out;
}

void ParameterScopes::release(std::span<const int64_t> indices) {
  std::vector<nn::ParamId> ids = parameter_ids(indices, "a release");
  const models::Model::Use use(*run_.model);
  std::vector<int> left = fetched_;
  left.resize(static_cast<size_t>(run_.model->parameters().size()));
  for (const nn::ParamId id : ids) {
    DS_CHECK(--left[static_cast<size_t>(id)] >= 0, Code::kState, "parameter ",
             printable(run_.model->parameters()[id].name),
             " is released, but not fetched, or not so many times");
  }
  pass_.reserve_one();
  zero::TrainState& state = *run_.state;
  for (const nn::ParamId id : ids) state.weights().release(id);
  fetched_ = std::move(left);
  fetched_count_ -= std::ssize(ids);
  if (open_.phase != OpenStep::Phase::kForwardDone) free_weights();
  if (state.gradients().leave_early()) pass_.add(CallerPass::Kind::kRelease) = std::move(ids);
}

void ParameterScopes::release_all() {
  if (fetched_count_ == 0) return;
  for (nn::ParamId id = 0; id < run_.model->parameters().size(); ++id) {
    for (int& n = fetched_[static_cast<size_t>(id)]; n > 0; --n) run_.state->weights().release(id);
  }
  fetched_count_ = 0;
}

std::vector<Tensor> ParameterScopes::gather(std::span<const int64_t> indices) {
  DS_CHECK(open_.phase == OpenStep::Phase::kIdle && open_.micro_batches == 0, Code::kState,
           "parameters cannot be gathered in the middle of a step; end it first");
  DS_CHECK(fetched_count_ == 0, Code::kState,
           "parameters are fetched, and what is gathered may change; release them first");
  const std::vector<nn::ParamId> ids = parameter_ids(indices, "a gather");
  gathered_.resize(static_cast<size_t>(run_.model->parameters().size()));
  std::vector<bool> seen(gathered_.size());
  for (const nn::ParamId id : ids) {
    const auto i = static_cast<size_t>(id);
    DS_CHECK(!gathered_[i] && !seen[i], Code::kState, "parameter ",
             printable(run_.model->parameters()[id].name),
             " is gathered already; two scopes cannot both change it");
    seen[i] = true;
  }
  const models::Model::Use use(*run_.model);
  std::vector<Tensor> out;
  for (const nn::ParamId id : ids) {
    out.push_back(
        copied_to_host(run_.state->masters().read(run_.context(), id), run_.model->host()));
  }
  gathered_sums_.resize(gathered_.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<size_t>(ids[i]);
    gathered_[id] = out[i];
    if (run_.config.zero.enable_sanity_checks) gathered_sums_[id] = checksum(out[i]);
  }
  gathered_count_ += std::ssize(ids);
  if (gathered_count_ > 0) run_.model->set_step_open(true);
  return out;
}

// With enable_sanity_checks: a scope without a modifier has nothing to drop.
void ParameterScopes::check_unchanged(std::span<const nn::ParamId> ids) {
  if (!run_.config.zero.enable_sanity_checks) return;
  agree(run_.context(), run_.world(), "ending a gather", [&] {
    for (const nn::ParamId id : ids) {
      const auto i = static_cast<size_t>(id);
      DS_CHECK(checksum(gathered_[i]) == gathered_sums_[i], Code::kState, "parameter ",
               printable(run_.model->parameters()[id].name), " was changed on rank ",
               run_.mesh.rank(),
               " while it was gathered, and without a modifier_rank the change is dropped; give "
               "the rank whose values count, or change nothing");
    }
  });
}

void ParameterScopes::forget(nn::ParamId id) {
  gathered_[static_cast<size_t>(id)] = Tensor();
  --gathered_count_;
}

void ParameterScopes::scatter(std::span<const int64_t> indices, int modifier) {
  const std::vector<nn::ParamId> ids = parameter_ids(indices, "a scatter");
  DS_CHECK(modifier >= -1 && modifier < run_.mesh.size(), Code::kInvalidArgument,
           "modifier_rank is ", modifier, "; a rank of the group of ", run_.mesh.size(),
           ", or -1 for none, is needed");
  std::vector<bool> seen(static_cast<size_t>(run_.model->parameters().size()));
  for (const nn::ParamId id : ids) {
    const auto i = static_cast<size_t>(id);
    DS_CHECK(i < gathered_.size() && gathered_[i] && !seen[i], Code::kState, "parameter ",
             printable(run_.model->parameters()[id].name), " is scattered, but not gathered");
    seen[i] = true;
  }
  const models::Model::Use use(*run_.model);
  if (modifier < 0) check_unchanged(ids);
  for (const nn::ParamId id : ids) {
    if (modifier >= 0) {
      const Tensor& value = gathered_[static_cast<size_t>(id)];
      const std::string& name = run_.model->parameters()[id].name;
      run_.world().broadcast(value, modifier, {.label = name, .same_label = true})->wait();
      run_.state->masters().write(run_.context(), id, run_.operand(value));
    }
    forget(id);
  }
  if (gathered_count_ == 0) run_.model->set_step_open(false);
}

void ParameterScopes::forget_gathered(std::span<const int64_t> indices) {
  for (const nn::ParamId id : parameter_ids(indices, "the end of a gather")) {
    if (gathered_[static_cast<size_t>(id)]) forget(id);
  }
  if (gathered_count_ == 0) run_.model->set_step_open(false);
}

}  // namespace ds
