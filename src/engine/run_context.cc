#include "engine/run_context.h"

#include "base/text.h"
#include "config/auto_values.h"
#include "engine/expert_parallel.h"
#include "engine/lone_process.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds {
namespace {

ConfigEnvironment environment_of(const models::Model& model, int ranks) {
  ConfigEnvironment environment;
  environment.on_gpu = model.device()->kind() != DeviceKind::kCpu;
  if (model.has_architecture()) {
    environment.hidden_size = hidden_size_of(model.architecture().config());
  }
  environment.data_parallel_size = ranks;
  return environment;
}

kernels::GpuPolicy policy_of(const CudaConfig& config) {
  using kernels::AttentionChoice;
  const AttentionChoice attention =
      config.attention == CudaConfig::Attention::kOwn     ? AttentionChoice::kOwn
      : config.attention == CudaConfig::Attention::kCudnn ? AttentionChoice::kCudnn
                                                          : AttentionChoice::kAuto;
  return {attention, config.strict_determinism, config.time_products, config.tf32};
}

// Before the configuration has said how they are arranged; null: this process alone.
int ranks_in(const std::shared_ptr<Communicator>& group) { return group ? Mesh(group).size() : 1; }

Mesh make_mesh(std::shared_ptr<Communicator> group, const Config& config) {
  const MeshSizes sizes = mesh_sizes(config, ranks_in(group));
  return Mesh(group ? std::move(group) : make_lone_communicator(), sizes);
}

}  // namespace

RunContext::RunContext(std::string_view config_json, std::shared_ptr<models::Model> trained,
                       std::shared_ptr<Communicator> group, const ReadOptions& reading)
    : config(load_config(config_json, environment_of(*trained, ranks_in(group)), reading)),
      mesh(make_mesh(std::move(group), config)),
      model(std::move(trained)),
      pool(config.threads, config.thread_affinity),
      gpu_policy(policy_of(config.cuda)) {}

nn::ParamId RunContext::trainable(const std::string& name) const {
  const nn::ParamId id = model->parameters().find(name);
  DS_CHECK(model->parameters()[id].trainable, Code::kNotFound, printable(name),
           " is frozen: it has no gradient and no optimizer state");
  return id;
}

// The caller's may be strided, and lie on the host.
Tensor RunContext::operand(const Tensor& value, const std::shared_ptr<Device>& device) {
  if (value.contiguous()) return to_device(value, device);
  const OpContext host = host_context();
  Tensor packed = host.workspace(value.dtype(), value.shape());
  ops::cast(host, value, packed);
  return to_device(packed, device);
}

}  // namespace ds
