// Engines whose optimizer state rests on the host beside a GPU, for tests that compare them with
// engines that keep it where they compute.
#pragma once

#include "attached_state.h"
#include "cuda/model_world.h"
#include "ops/elementwise.h"
#include "ops/split_master.h"

namespace ds::gpu_test {

// More elements than an update takes at a time here, and several buckets of gradients.
inline Json offload_model() {
  return with(model_config(), {{"n_embd", 64}, {"vocab_size", 61}, {"n_layer", 2}});
}

inline Json offloaded(const Json& config, bool pinned = true) {
  return with(config, {{"zero_allow_untested_optimizer", true},
                       {"zero_optimization",
                        {{"stage", 2},
                         {"reduce_bucket_size", 20000},
                         {"sub_group_size", 40000},
                         {"reduce_scatter", false},
                         {"offload_optimizer", {{"device", "cpu"}, {"pin_memory", pinned}}}}}});
}

inline std::unique_ptr<Engine> offload_engine(const Json& config, bool gpu = true) {
  return make_engine_on(gpu, config, offload_model());
}

// Gives every trainable parameter the gradient that `random` makes.
inline void give_random_gradients(Engine& engine, uint64_t seed) {
  std::mt19937_64 random(seed);
  const nn::ParameterSet& parameters = engine.model()->parameters();
  std::vector<Tensor> gradients;
  std::vector<const Tensor*> pointers;
  std::vector<int64_t> indices;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const Tensor value = random_tensor(random, parameters[id].shape);
    if (!parameters[id].trainable) continue;
    gradients.push_back(value);
    indices.push_back(id);
  }
  for (const Tensor& gradient : gradients) pointers.push_back(&gradient);
  engine.gradients().add(indices, pointers);
}

inline StepReport step_with_random_gradients(Engine& engine, uint64_t seed) {
  give_random_gradients(engine, seed);
  return engine.step();
}

// What the GPU computes with are the masters, rounded to its type.
inline void expect_weights_follow(Engine& engine) {
  models::Model& model = *engine.model();
  zero::TrainState& state = train_state(model);
  const OpContext host{model.host(), model.context().pool};
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const Tensor there = state.weights().acquire(id);
    EXPECT_FALSE(on_host(there));
    const Tensor weight = copied_to_host(there, model.host());
    state.weights().release(id);
    Tensor rounded = Tensor::empty(model.host(), weight.dtype(), weight.shape(), MemoryTag::kOther);
    const Tensor master = model.get(model.parameters()[id].name);
    if (state.arrays().flat.low_halves) {
      Tensor low = Tensor::empty(model.host(), DType::kUInt16, weight.shape(), MemoryTag::kOther);
      ops::split_masters(host, master, rounded, low);
    } else {
      ops::cast(host, master, rounded);
    }
    EXPECT_EQ(std::memcmp(weight.raw(), rounded.raw(), static_cast<size_t>(weight.bytes())), 0)
        << model.parameters()[id].name;
  }
}

}  // namespace ds::gpu_test
