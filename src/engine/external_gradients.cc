#include "engine/external_gradients.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "engine/combinations.h"
#include "engine/open_step.h"
#include "engine/parameter_scopes.h"
#include "engine/run_context.h"
#include "engine/step_guard.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"
#include "zero/gradient_values.h"

namespace ds {
namespace {

void check_gradient(const Tensor& gradient, const nn::Parameter& parameter) {
  DS_CHECK(gradient, Code::kInvalidArgument, "the gradient of ", parameter.name, " is missing");
  const DType type = gradient.dtype();
  DS_CHECK(type == DType::kFloat32 || type == DType::kBFloat16 || type == DType::kFloat16,
           Code::kInvalidArgument, "the gradient of ", parameter.name,
           " must be float32, bfloat16 or float16, not ", dtype_name(type));
  DS_CHECK(on_host(gradient) || gradient.contiguous(), Code::kUnsupported, "the gradient of ",
           parameter.name, " lies on a GPU and must be packed row-major");
  DS_CHECK(gradient.shape() == parameter.shape, Code::kInvalidArgument, "the gradient of ",
           parameter.name, " has shape ", gradient.shape().text(), ", the parameter ",
           parameter.shape.text());
}

}  // namespace

void reduce_given(RunContext& run, const OpenStep& open) {
  if (run.model->has_architecture() || open.phase != OpenStep::Phase::kBackwardDone) return;
  run.state->gradients().reduce_open();
}

// Those of a built-in model that are reduced in its backward have no place for whole ones of the
// caller before the first of them comes.
void ExternalGradients::need_whole_gradients() {
  const bool built_in = run_.model->has_architecture();
  check_call(built_in ? Refusal::kAddedGradientsAtStage3 : Refusal::kWholeGradientsAtStage3,
             situation_of(run_));
  if (!built_in) return;
  check_call(Refusal::kAddedGradientsBesideExperts, situation_of(run_));
  run_.state->gradients().hold_whole();
}

void ExternalGradients::add(std::span<const int64_t> indices,
                            std::span<const Tensor* const> gradients) {
  open_.check_takes_gradients();
  const models::Model::Use use(*run_.model);
  const nn::ParameterSet& parameters = run_.model->parameters();
  // All are checked before the first is added.
  std::vector<nn::ParamId> ids;
  ids.reserve(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    const int64_t index = indices.empty() ? static_cast<int64_t>(i) : indices[i];
    DS_CHECK(index >= 0 && index < parameters.size(), Code::kInvalidArgument, "gradient ", i,
             " is for parameter ", index, "; the model has ", parameters.size());
    const nn::Parameter& p = parameters[ids.emplace_back(static_cast<nn::ParamId>(index))];
    DS_CHECK(p.trainable, Code::kInvalidArgument, p.name, " is frozen: it takes no gradient");
    check_gradient(*gradients[i], p);
  }
  if (gradients.empty()) return;
  DS_CHECK(!scopes_.gathered(), Code::kState,
           "gradients are added while parameters are gathered; scatter those first");
  open_.begin_clock();
  if (!run_.model->has_architecture() && run_.state->gradients().leave_early()) {
    open_.phase = OpenStep::Phase::kBackwardDone;
    add_by_bucket(ids, gradients);
    wait_for_readers(gradients);
    return;
  }
  need_whole_gradients();
  add_whole(ids, gradients);
  wait_for_readers(gradients);
  open_.phase = OpenStep::Phase::kBackwardDone;
}

// They leave for the other ranks as soon as a bucket has all of its own.
void ExternalGradients::add_by_bucket(std::span<const nn::ParamId> ids,
                                      std::span<const Tensor* const> gradients) {
  const OpContext ctx = run_.state->arrays().state_context(run_.context());
  std::vector<nn::ParamId>& added = scopes_.pass().add(CallerPass::Kind::kGradient);
  for (size_t i = 0; i < gradients.size(); ++i) {
    added.push_back(ids[i]);
    run_.state->gradients().add(ctx, ids[i], run_.operand(*gradients[i]));
  }
}

void ExternalGradients::add_whole(std::span<const nn::ParamId> ids,
                                  std::span<const Tensor* const> gradients) {
  zero::TrainState& state = *run_.state;
  const OpContext ctx = state.gradients().given_context(run_.context());
  std::vector<const Tensor*> sources;
  std::vector<int64_t> offsets;
  std::deque<Tensor> operands;
  sources.reserve(gradients.size());
  offsets.reserve(gradients.size());
  std::vector<bool> seen(static_cast<size_t>(run_.model->parameters().size()));
  guard_.write([&] { state.gradients().materialize(run_.context()); });
  Tensor given = state.gradients().given();
  const auto flush = [&] {
    ops::accumulate_into(ctx, sources, offsets, 1.0f, given);
    sources.clear();
    offsets.clear();
    operands.clear();
    seen.assign(seen.size(), false);
  };
  for (size_t i = 0; i < gradients.size(); ++i) {
    const nn::ParamId id = ids[i];
    // A parameter that comes twice is added twice, one after the other.
    if (seen[static_cast<size_t>(id)]) flush();
    seen[static_cast<size_t>(id)] = true;
    state.gradients().marks().set_given(id);
    sources.push_back(&operands.emplace_back(run_.operand(*gradients[i], ctx.device)));
    offsets.push_back(state.layout().flat().range(id).begin);
  }
  flush();
}

// Memory of a GPU is the caller's again when the call returns, or in the order of its stream.
void ExternalGradients::wait_for_readers(std::span<const Tensor* const> gradients) {
  if (run_.model->has_caller_stream()) return;
  const bool on_gpu =
      std::any_of(gradients.begin(), gradients.end(), [](const Tensor* x) { return !on_host(*x); });
  if (on_gpu) run_.model->device()->default_stream().synchronize();
}

void ExternalGradients::set(const std::string& name, const Tensor& value) {
  open_.check_takes_gradients();
  const models::Model::Use use(*run_.model);
  const nn::ParamId id = run_.trainable(name);
  check_gradient(value, run_.model->parameters()[id]);
  open_.begin_clock();
  guard_.write([&] {
    reduce_given(run_, open_);
    run_.state->gradients().materialize(run_.context());
    run_.state->gradients().reduce_replicas();
    zero::write_gradient(run_.context(), run_.state->gradients(), id, run_.operand(value));
  });
  const Tensor* const read = &value;
  wait_for_readers({&read, 1});
  run_.state->gradients().marks().set_given(id);
  open_.phase = OpenStep::Phase::kBackwardDone;
}

Tensor ExternalGradients::get(const std::string& name) {
  const models::Model::Use use(*run_.model);
  const nn::ParamId id = run_.trainable(name);
  guard_.run([this] { reduce_given(run_, open_); });
  guard_.materialize();
  return to_host(zero::read_gradient(run_.context(), run_.state->gradients(), id),
                 run_.model->host());
}

Tensor ExternalGradients::view(const std::string& name) {
  const models::Model::Use use(*run_.model);
  const nn::ParamId id = run_.trainable(name);
  check_call(Refusal::kGradientViewOnGpu, situation_of(run_));
  need_whole_gradients();
  run_.state->gradients().expose_views(run_.context());  // the caller may write whenever it likes
  run_.state->gradients().marks().set_viewed(id);
  return run_.state->gradients().view(id);
}

void ExternalGradients::set_loss(double loss) {
  DS_CHECK(!open_.forward_counted, Code::kState,
           "this micro batch has the loss of its forward; set a loss where gradients are your own");
  open_.external_loss = loss;
}

void ExternalGradients::begin_no_sync() {
  check_call(Refusal::kNoSyncWithReducedGradients, situation_of(run_));
  DS_CHECK(!open_.mode.no_sync, Code::kState, "a no_sync scope is open already; they do not nest");
  DS_CHECK(open_.phase != OpenStep::Phase::kForwardDone, Code::kState,
           "a forward waits for its backward; no_sync begins before both");
  const models::Model::Use use(*run_.model);
  if (run_.model->has_architecture()) run_.state->gradients().hold_whole();
  open_.mode.no_sync = true;
}

void ExternalGradients::end_no_sync() { open_.mode.no_sync = false; }

}  // namespace ds
