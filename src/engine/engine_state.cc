// What callers may read and set of an engine besides training: configuration, memory, gradients,
// optimizer state, the learning rate.
#include <cmath>
#include <cstring>

#include "engine/engine.h"

namespace ds {
namespace {

Tensor copy_of(const std::shared_ptr<Device>& device, const Tensor& source) {
  Tensor copy = Tensor::empty(device, source.dtype(), source.shape(), MemoryTag::kOther);
  if (copy.bytes() > 0) {
    std::memcpy(copy.raw(), source.raw(), static_cast<size_t>(copy.bytes()));
  }
  return copy;
}

nn::ParamId trainable(const nn::ParameterSet& parameters, const std::string& name) {
  const nn::ParamId id = parameters.find(name);
  DS_CHECK(parameters[id].trainable, Code::kNotFound, name,
           " is frozen: it has no gradient and no optimizer state");
  return id;
}

}  // namespace

Json Engine::config_document() const {
  Json origins = Json::object();
  for (const auto& [path, origin] : config_.origins()) origins[path] = origin;
  Json document = Json::object();
  document["config"] = config_.resolved();
  document["origins"] = std::move(origins);
  document["warnings"] = config_.warnings();
  return document;
}

Json Engine::memory_report() const {
  const Device& device = *model_->device();
  const MemoryAccount& account = device.account();
  Json tags = Json::object();
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    tags[std::string(memory_tag_name(tag))] = {{"now", account.now(tag)},
                                               {"peak", account.peak(tag)}};
  }
  return {{"device", device.describe()},
          {"tags", std::move(tags)},
          {"total", {{"now", account.total_now()}, {"peak", account.total_peak()}}},
          {"reserved", device.reserved_bytes()},
          {"system_allocations", device.system_allocations()}};
}

Tensor Engine::gradient(const std::string& name) {
  const nn::ParamId id = trainable(model_->parameters(), name);
  return copy_of(model_->device(), model_->state().gradient_view(id));
}

Tensor Engine::state_tensor(const std::string& state) {
  if (state == "exp_avg") return adam_->exp_avg();
  if (state == "exp_avg_sq") return adam_->exp_avg_sq();
  fail(Code::kNotFound, "the optimizer has no state ", printable(state),
       "; it has exp_avg and exp_avg_sq");
}

Tensor Engine::optimizer_state(const std::string& name, const std::string& state) {
  const nn::ParamId id = trainable(model_->parameters(), name);
  return copy_of(model_->device(), model_->state().view(state_tensor(state), id));
}

void Engine::set_optimizer_state(const std::string& name, const std::string& state,
                                 const Tensor& value) {
  DS_CHECK(phase_ == Phase::kIdle, Code::kState, "a forward or backward is open");
  const nn::ParamId id = trainable(model_->parameters(), name);
  check_tensor(value, name.c_str(), DType::kFloat32, model_->parameters()[id].shape);
  DS_CHECK(value.contiguous(), Code::kInvalidArgument, name, " must be packed row-major");
  const Tensor target = model_->state().view(state_tensor(state), id);
  if (value.bytes() > 0) {
    std::memcpy(target.raw(), value.raw(), static_cast<size_t>(value.bytes()));
  }
}

void Engine::set_lr(double lr) {
  DS_CHECK(std::isfinite(lr) && lr >= 0, Code::kInvalidArgument,
           "the learning rate must be finite and not negative, not ", lr);
  lr_ = lr;
}

}  // namespace ds
