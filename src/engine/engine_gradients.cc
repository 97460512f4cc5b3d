// Gradients that the caller computed: added, replaced, read, or written in place.
#include <deque>
#include <vector>

#include "engine/engine.h"
#include "ops/elementwise.h"

namespace ds {
namespace {

void check_gradient(const Tensor& gradient, const nn::Parameter& parameter) {
  DS_CHECK(gradient, Code::kInvalidArgument, "the gradient of ", parameter.name, " is missing");
  const DType type = gradient.dtype();
  DS_CHECK(type == DType::kFloat32 || type == DType::kBFloat16 || type == DType::kFloat16,
           Code::kInvalidArgument, "the gradient of ", parameter.name,
           " must be float32, bfloat16 or float16, not ", dtype_name(type));
  DS_CHECK(gradient.storage()->device_kind() == DeviceKind::kCpu, Code::kUnsupported,
           "the gradient of ", parameter.name, " must lie in host memory");
  DS_CHECK(gradient.shape() == parameter.shape, Code::kInvalidArgument, "the gradient of ",
           parameter.name, " has shape ", gradient.shape().text(), ", the parameter ",
           parameter.shape.text());
}

// Operators read packed tensors; a caller's may be strided.
Tensor packed(const OpContext& ctx, const Tensor& x) {
  Tensor copy = ctx.workspace(x.dtype(), x.shape());
  ops::cast(ctx, x, copy);
  return copy;
}

}  // namespace

void Engine::check_gradients_open() const {
  DS_CHECK(phase_ != Phase::kForwardDone, Code::kState,
           "a forward waits for its backward; gradients can be given after it");
}

void Engine::check_whole_gradients() const {
  DS_CHECK(model_->state().whole_gradients(), Code::kUnsupported,
           "the gradients of a built-in model are spread over ranks at this ZeRO stage, and only "
           "its own backward can add to them; set whole ones, or use stage 0");
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
  check_whole_gradients();
  begin_step_clock();
  const OpContext ctx = context();
  std::vector<const Tensor*> sources;
  std::vector<int64_t> offsets;
  std::deque<Tensor> copies;  // of strided ones
  sources.reserve(gradients.size());
  offsets.reserve(gradients.size());
  std::vector<bool> seen(static_cast<size_t>(parameters.size()));
  model_->state().settle_gradients(ctx);
  const auto flush = [&] {
    ops::accumulate_into(ctx, sources, offsets, 1.0f, model_->state().flat().gradients.data);
    sources.clear();
    offsets.clear();
    seen.assign(seen.size(), false);
  };
  for (size_t i = 0; i < gradients.size(); ++i) {
    const nn::ParamId id = id_at(i);
    // A parameter that comes twice is added twice, one after the other.
    if (seen[static_cast<size_t>(id)]) flush();
    seen[static_cast<size_t>(id)] = true;
    const bool dense = gradients[i]->contiguous();
    sources.push_back(dense ? gradients[i] : &copies.emplace_back(packed(ctx, *gradients[i])));
    offsets.push_back(model_->state().layout().range(id).begin);
  }
  flush();
  phase_ = Phase::kBackwardDone;
  model_->set_step_open(true);
}

void Engine::set_gradient(const std::string& name, const Tensor& value) {
  check_gradients_open();
  const models::Model::Use use(*model_);
  const nn::ParamId id = trainable(name);
  check_gradient(value, model_->parameters()[id]);
  begin_step_clock();
  model_->state().settle_gradients(context());
  model_->state().reduce_replicas();
  model_->state().write_gradient(context(), id, value);
  phase_ = Phase::kBackwardDone;
  model_->set_step_open(true);
}

Tensor Engine::gradient(const std::string& name) {
  const models::Model::Use use(*model_);
  const nn::ParamId id = trainable(name);
  model_->state().settle_gradients(context());
  model_->state().reduce_replicas();
  return model_->state().read_gradient(context(), id);
}

Tensor Engine::gradient_view(const std::string& name) {
  const nn::ParamId id = trainable(name);
  check_whole_gradients();
  model_->state().clear_gradients_at_once(context());  // the caller may write whenever it likes
  return model_->state().gradient_view(id);
}

void Engine::discard_gradients() {
  const models::Model::Use use(*model_);
  drop_open_step();
}

}  // namespace ds
