// What every part of an engine works with: the configuration, the model, the mesh of ranks and the
// threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "config/config.h"
#include "engine/teacher.h"
#include "mesh/row_exchange.h"
#include "models/model.h"
#include "ops/context.h"
#include "zero/train_state.h"

namespace ds {

struct RunContext {
  // `group` may be null: this process alone. `reading`: how the configuration is read.
  RunContext(std::string_view config_json, std::shared_ptr<models::Model> trained,
             std::shared_ptr<Communicator> group, const ReadOptions& reading);

  OpContext context() { return {model->device(), &pool, gpu_policy}; }
  OpContext host_context() { return {model->host(), &pool}; }

  // Rank 0 logs and writes what concerns all.
  bool first_rank() const { return mesh.first_rank(); }
  // For what all ranks do together.
  Communicator& world() const { return *mesh.world(); }
  // The ranks that read different samples, and this one's place among them.
  int data_ranks() const { return mesh.size(MeshGroup::kData); }
  int data_rank() const { return mesh.rank(MeshGroup::kData); }
  // The ranks over which gradients, and with them losses, are reduced.
  const std::shared_ptr<Communicator>& gradient_group() const {
    return mesh.group(MeshGroup::kDataContext);
  }
  int gradient_ranks() const { return mesh.size(MeshGroup::kDataContext); }
  // Among whom the experts of each layer are shared; null where every rank has all.
  const ExchangeRanks* expert_ranks() const { return experts ? &experts : nullptr; }
  // A parameter that has a gradient and optimizer state, by name; throws kNotFound otherwise.
  nn::ParamId trainable(const std::string& name) const;
  // A caller's tensor as operators read it: packed, where masters and gradients lie, or on a
  // device.
  Tensor operand(const Tensor& value) {
    return operand(value, state->arrays().state_context(context()).device);
  }
  Tensor operand(const Tensor& value, const std::shared_ptr<Device>& device);

  Config config;  // its batch sizes follow rampup_batch_size
  const Mesh mesh;
  const std::shared_ptr<models::Model> model;
  // Of the weights of the model, which refers to it, from the time the engine is attached.
  std::shared_ptr<zero::TrainState> state;
  ThreadPool pool;
  const kernels::GpuPolicy gpu_policy;
  ExchangeRanks experts;  // by their order in a layer; none where every rank has all
  std::shared_ptr<optim::ArrayFactory> arrays;  // null: training state lies in memory
  std::unique_ptr<Teacher> teacher;             // null: there is none
};

}  // namespace ds
