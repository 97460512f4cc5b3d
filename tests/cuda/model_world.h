// Models on a GPU beside the same on the CPU, for tests that compare the two.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "device/cuda_device.h"
#include "tensor/transfer.h"
#include "unit/engine/engine_world.h"

namespace ds::gpu_test {

using namespace engine_test;  // NOLINT: small models and data

// Every test runs with a GPU, or is skipped with the reason.
class GpuModel : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
  }
};

inline Json llama_config() {
  return {{"model_type", "llama"},    {"vocab_size", 61},
          {"hidden_size", 32},        {"intermediate_size", 48},
          {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 32}};
}

inline std::shared_ptr<models::Model> make_model(const Json& config, bool gpu) {
  auto model = models::Model::create(config, 3);
  if (gpu) model->set_device(make_cuda_device(0));
  return model;
}

inline std::unique_ptr<Engine> make_engine_on(bool gpu, const Json& config,
                                              const Json& model = model_config()) {
  auto engine = std::make_unique<Engine>(dump_json(config), make_model(model, gpu), nullptr);
  engine->set_dataset(periodic_data());
  return engine;
}

// All weights, by name, on the host.
inline std::vector<float> weights_of(models::Model& model) {
  std::vector<float> out;
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const Tensor value = model.get(model.parameters()[id].name);
    out.insert(out.end(), value.data<float>(), value.data<float>() + value.elements());
  }
  return out;
}
inline std::vector<float> weights_of(Engine& engine) { return weights_of(*engine.model()); }

inline std::vector<float> states_of(Engine& engine) {
  std::vector<float> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (!parameters[id].trainable) continue;
    for (const std::string& state : engine.values().optimizer_states(parameters[id].name)) {
      const std::vector<float> values =
          flat(engine.values().optimizer_state(parameters[id].name, state));
      out.insert(out.end(), values.begin(), values.end());
    }
  }
  return out;
}

inline Tensor random_tensor(std::mt19937_64& random, const Shape& shape, float spread = 1) {
  static const std::shared_ptr<Device> host = make_cpu_device();
  Tensor out = Tensor::empty(host, DType::kFloat32, shape, MemoryTag::kOther);
  std::normal_distribution<float> normal(0, spread);
  for (int64_t i = 0; i < out.elements(); ++i) out.data<float>()[i] = normal(random);
  return out;
}

}  // namespace ds::gpu_test
