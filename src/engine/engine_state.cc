// What callers may read and set of an engine besides training: configuration, memory, gradients,
// optimizer state, the learning rate.
#include "engine/engine.h"
#include "tensor/transfer.h"

namespace ds {

Json Engine::config_document() const {
  Json origins = Json::object();
  for (const auto& [path, origin] : config_.origins()) origins[path] = origin;
  Json document = Json::object();
  document["config"] = config_.resolved();
  document["given"] = config_.given();
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
                                               {"peak", metrics_->peak(tag)}};
  }
  Json report = {{"device", device.describe()},
                 {"tags", std::move(tags)},
                 {"total", {{"now", account.total_now()}, {"peak", metrics_->total_peak()}}},
                 {"reserved", device.reserved_bytes()},
                 {"system_allocations", device.system_allocations()}};
  if (device.kind() == DeviceKind::kCpu) return report;
  Json host = Json::object();
  const auto add = [&](const char* name, const Device& memory) {
    const MemoryAccount& there = memory.account();
    Json by_tag = Json::object();
    for (int i = 0; i < kMemoryTags; ++i) {
      const auto tag = static_cast<MemoryTag>(i);
      by_tag[std::string(memory_tag_name(tag))] = {{"now", there.now(tag)},
                                                   {"peak", there.peak(tag)}};
    }
    host[name] = {{"tags", std::move(by_tag)},
                  {"now", there.total_now()},
                  {"peak", there.total_peak()},
                  {"reserved", memory.reserved_bytes()}};
  };
  add("pageable", *model_->host());
  add("pinned", *host_memory_of(model_->device()));
  report["host"] = std::move(host);
  return report;
}

std::vector<std::string> Engine::optimizer_states(const std::string& name) {
  return updater_->optimizer().states(updater_->place(trainable(name)));
}

Tensor Engine::optimizer_state(const std::string& name, const std::string& state) {
  const models::Model::Use use(*model_);
  const size_t place = updater_->place(trainable(name));
  optim::Optimizer& optimizer = updater_->optimizer();
  zero::ParameterState& all = model_->state();
  if (all.layout().world() == 1) return optimizer.read_state(host_context(), place, state);
  const optim::OwnedRange owned = optimizer.owned(place);
  Tensor own = host_context().workspace(DType::kFloat32, {owned.end - owned.begin});
  if (owned.begin < owned.end) {
    optimizer.read_state_range(place, state, owned.begin, owned.end, own.data<float>());
  }
  return all.gather_parts(host_context(), trainable(name), own);
}

void Engine::set_optimizer_state(const std::string& name, const std::string& state,
                                 const Tensor& value) {
  DS_CHECK(phase_ != Phase::kForwardDone, Code::kState,
           "the last forward still waits for its backward");
  const models::Model::Use use(*model_);
  const nn::ParamId id = trainable(name);
  check_tensor(value, name.c_str(), DType::kFloat32, model_->parameters()[id].shape);
  DS_CHECK(value.contiguous(), Code::kInvalidArgument, name, " must be packed row-major");
  optim::Optimizer& optimizer = updater_->optimizer();
  const size_t place = updater_->place(id);
  const optim::OwnedRange owned = optimizer.owned(place);
  if (owned.begin == owned.end && value.elements() > 0) return;
  optimizer.write_state_range(place, state, owned.begin, owned.end,
                              value.data<float>() + owned.begin);
}

}  // namespace ds
