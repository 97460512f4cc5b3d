// Gradients that the caller computed: added, replaced, read, or written in place.
#include <algorithm>
#include <deque>
#include <vector>

#include "engine/engine.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

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

// Operators read packed tensors where masters and gradients lie; a caller's may be strided, and lie
// on the host.
Tensor Engine::operand(const Tensor& given) {
  const std::shared_ptr<Device> device = model_->state().state_context(context()).device;
  if (given.contiguous()) return to_device(given, device);
  const OpContext host = host_context();
  Tensor packed = host.workspace(given.dtype(), given.shape());
  ops::cast(host, given, packed);
  return to_device(packed, device);
}

void Engine::check_gradients_open() const {
  DS_CHECK(phase_ != Phase::kForwardDone, Code::kState,
           "a forward waits for its backward; gradients can be given after it");
}

// Those of a built-in model that are reduced in its backward have no place for whole ones of the
// caller before the first of them comes.
void Engine::need_whole_gradients() {
  const bool built_in = model_->has_architecture();
  DS_CHECK(config_.zero.stage < 3 || comm_->size() == 1, Code::kUnsupported,
           "at ZeRO stage 3 no memory holds whole gradients; ",
           built_in ? "only the backward of a built-in model adds to them. Set reduced ones "
                      "(ds_engine_set_values), or use stage 2"
                    : "add them (ds_engine_add_gradients), or use stage 2");
  if (built_in) model_->state().hold_own_gradients();
}

nn::ParamId Engine::trainable(const std::string& name) const {
  const nn::ParamId id = model_->parameters().find(name);
  DS_CHECK(model_->parameters()[id].trainable, Code::kNotFound, printable(name),
           " is frozen: it has no gradient and no optimizer state");
  return id;
}

void Engine::add_gradients(std::span<const int64_t> indices,
                           std::span<const Tensor* const> gradients) {
  check_gradients_open();
  const models::Model::Use use(*model_);
  const nn::ParameterSet& parameters = model_->parameters();
  const auto id_at = [&](size_t i) {
    const int64_t index = indices.empty() ? static_cast<int64_t>(i) : indices[i];
    DS_CHECK(index >= 0 && index < parameters.size(), Code::kInvalidArgument, "gradient ", i,
             " is for parameter ", index, "; the model has ", parameters.size());
    return static_cast<nn::ParamId>(index);
  };
  // All are checked before the first is added.
  for (size_t i = 0; i < gradients.size(); ++i) {
    const nn::Parameter& p = parameters[id_at(i)];
    DS_CHECK(p.trainable, Code::kInvalidArgument, p.name, " is frozen: it takes no gradient");
    check_gradient(*gradients[i], p);
  }
  if (gradients.empty()) return;
  DS_CHECK(gathered_count_ == 0, Code::kState,
           "gradients are added while parameters are gathered; scatter those first");
  begin_step_clock();
  const OpContext ctx = model_->state().state_context(context());
  if (!model_->has_architecture() && model_->state().gradients_leave_early()) {
    OwnUse& given = own_uses_.emplace_back(OwnUse{OwnUse::Kind::kGradient, {}});
    phase_ = Phase::kBackwardDone;
    for (size_t i = 0; i < gradients.size(); ++i) {
      given.ids.push_back(id_at(i));
      model_->state().add_own_gradient(ctx, id_at(i), operand(*gradients[i]));
    }
    wait_for_readers(gradients);
    return;
  }
  need_whole_gradients();
  std::vector<const Tensor*> sources;
  std::vector<int64_t> offsets;
  std::deque<Tensor> operands;
  sources.reserve(gradients.size());
  offsets.reserve(gradients.size());
  std::vector<bool> seen(static_cast<size_t>(parameters.size()));
  model_->state().materialize_gradients(ctx);
  const auto flush = [&] {
    ops::accumulate_into(ctx, sources, offsets, 1.0f, model_->state().own_gradients());
    sources.clear();
    offsets.clear();
    operands.clear();
    seen.assign(seen.size(), false);
  };
  for (size_t i = 0; i < gradients.size(); ++i) {
    const nn::ParamId id = id_at(i);
    // A parameter that comes twice is added twice, one after the other.
    if (seen[static_cast<size_t>(id)]) flush();
    seen[static_cast<size_t>(id)] = true;
    model_->state().gradient_given(id);
    sources.push_back(&operands.emplace_back(operand(*gradients[i])));
    offsets.push_back(model_->state().layout().range(id).begin);
  }
  flush();
  wait_for_readers(gradients);
  phase_ = Phase::kBackwardDone;
}

// Memory of a GPU is the caller's again when the call returns, or in the order of its stream.
void Engine::wait_for_readers(std::span<const Tensor* const> gradients) {
  if (model_->has_caller_stream()) return;
  const bool on_gpu =
      std::any_of(gradients.begin(), gradients.end(), [](const Tensor* x) { return !on_host(*x); });
  if (on_gpu) model_->device()->default_stream().synchronize();
}

void Engine::set_gradient(const std::string& name, const Tensor& value) {
  check_gradients_open();
  const models::Model::Use use(*model_);
  const nn::ParamId id = trainable(name);
  check_gradient(value, model_->parameters()[id]);
  begin_step_clock();
  reduce_what_is_open();
  model_->state().materialize_gradients(context());
  model_->state().reduce_replicas();
  model_->state().write_gradient(context(), id, operand(value));
  const Tensor* const read = &value;
  wait_for_readers({&read, 1});
  model_->state().gradient_given(id);
  phase_ = Phase::kBackwardDone;
}

// Gradients of the caller that have left for a bucket cannot be seen before they come back.
void Engine::reduce_what_is_open() {
  if (model_->has_architecture() || phase_ != Phase::kBackwardDone) return;
  model_->state().reduce_open_gradients();
}

Tensor Engine::gradient(const std::string& name) {
  const models::Model::Use use(*model_);
  const nn::ParamId id = trainable(name);
  reduce_what_is_open();
  model_->state().materialize_gradients(context());
  model_->state().reduce_replicas();
  return to_host(model_->state().read_gradient(context(), id), model_->host());
}

Tensor Engine::gradient_view(const std::string& name) {
  const models::Model::Use use(*model_);
  const nn::ParamId id = trainable(name);
  DS_CHECK(model_->device()->kind() == DeviceKind::kCpu || !model_->has_architecture(),
           Code::kUnsupported, "gradients lie on ", model_->device()->describe(),
           ", where the library works with them; add or set them (ds_engine_add_gradients)");
  need_whole_gradients();
  model_->state().clear_gradients_at_once(context());  // the caller may write whenever it likes
  model_->state().gradient_viewed(id);
  return model_->state().gradient_view(id);
}

void Engine::set_loss(double loss) {
  DS_CHECK(!forward_counted_, Code::kState,
           "this micro batch has the loss of its forward; set a loss where gradients are your own");
  given_loss_ = loss;
}

void Engine::discard_gradients() {
  const models::Model::Use use(*model_);
  drop_open_step();
}

}  // namespace ds
