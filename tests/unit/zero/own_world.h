// A program with parameters and gradients of its own, on ranks that are threads: a row of layers,
// each a matrix and a bias, whose "gradients" follow from the weights that it sees, so that a wrong
// weight anywhere shows in everything that comes after.
#pragma once

#include "attached_state.h"
#include "zero_world.h"

namespace ds::zero_test {

struct OwnJob {
  int world = 2;
  Json config;
  int steps = 4;
  int layers = 5;
  bool turned = false;  // from its third step on the layers are used in another order
  DType dtype = DType::kFloat32;
  int64_t width = 37;
  // What a parameter is otherwise; false leaves it out.
  std::function<bool(nn::Parameter&)> change = [](nn::Parameter&) { return true; };
};

inline nn::ParameterSet own_parameters(const OwnJob& job) {
  nn::ParameterSet set;
  const auto add = [&](nn::Parameter p) {
    if (job.change(p)) set.add(std::move(p));
  };
  for (int layer = 0; layer < job.layers; ++layer) {
    nn::Parameter matrix;
    matrix.name = str_cat("layer", layer, ".weight");
    matrix.shape = Shape{19 + layer, job.width};
    matrix.dtype = job.dtype;
    add(matrix);
    nn::Parameter bias;
    bias.name = str_cat("layer", layer, ".bias");
    bias.shape = Shape{layer == 2 ? 1 : 23};
    bias.decays = false;
    bias.dtype = job.dtype;
    add(bias);
  }
  return set;
}

// Which of all parameters it is, also where some are left out: matrices are even, biases odd.
inline int64_t number_of(const nn::Parameter& p) {
  const int64_t layer = std::stoll(p.name.substr(5));
  return 2 * layer + (p.name.ends_with(".bias") ? 1 : 0);
}

// A number of [-1, 1) that depends on all of its arguments.
inline float noise(int64_t a, int64_t b, int64_t c = 0, int64_t d = 0) {
  auto x = static_cast<uint64_t>(a * 1000003 + b * 7919 + c * 104729 + d * 31 + 12345);
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15ull;
  x ^= x >> 29;
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-52 - 1.0);
}

inline std::shared_ptr<models::Model> own_model(const OwnJob& job) {
  auto model = models::Model::from_parameters(own_parameters(job));
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const Tensor master = master_of(*model, id);
    const int64_t number = number_of(model->parameters()[id]);
    for (int64_t i = 0; i < master.elements(); ++i) master.data<float>()[i] = noise(number, i);
  }
  return model;
}

// The numbers of a tensor of any floating type.
inline std::vector<float> numbers(const Tensor& x) {
  std::vector<float> out(static_cast<size_t>(x.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = x.dtype() == DType::kFloat32    ? x.data<float>()[i]
             : x.dtype() == DType::kBFloat16 ? to_float(x.data<bfloat16>()[i])
                                             : to_float(x.data<float16>()[i]);
  }
  return out;
}

// The gradient that rank `rank` has in micro batch `micro`, of weights w.
inline std::vector<float> own_gradient(const std::vector<float>& w, int64_t number, int rank,
                                       int64_t micro) {
  std::vector<float> g(w.size());
  for (size_t i = 0; i < g.size(); ++i) {
    g[i] = 0.25f * w[i] + noise(number, static_cast<int64_t>(i), rank, micro);
  }
  return g;
}

// One micro batch: forward over the layers, backward in reverse.
inline void run_own_batch(Engine& engine, const OwnJob& job, int rank, int64_t micro,
                          bool turned = false) {
  static const std::shared_ptr<Device> device = make_cpu_device();
  const nn::ParameterSet& set = engine.model()->parameters();
  // A layer's parameters, in an order.
  const auto ids_of = [&](int i, std::initializer_list<const char*> names) {
    const int layer = turned ? job.layers - 1 - i : i;
    std::vector<int64_t> ids;
    for (const char* const name : names) {
      const nn::ParamId id = set.lookup(str_cat("layer", layer, name));
      if (id != nn::kNoParam) ids.push_back(id);
    }
    return ids;
  };
  for (int i = 0; i < job.layers; ++i) {
    const std::vector<int64_t> ids = ids_of(i, {".weight", ".bias"});
    engine.scopes().fetch(ids);
    engine.scopes().release(ids);
  }
  for (int i = job.layers - 1; i >= 0; --i) {
    const std::vector<int64_t> ids = ids_of(i, {".bias", ".weight"});
    const std::vector<Tensor> weights = engine.scopes().fetch(ids);
    for (size_t k = 0; k < ids.size(); ++k) {
      const nn::Parameter& p = set[static_cast<nn::ParamId>(ids[k])];
      EXPECT_EQ(weights[k].dtype(), p.dtype) << p.name;
      if (!p.trainable) continue;
      Tensor gradient =
          Tensor::empty(device, DType::kFloat32, weights[k].shape(), MemoryTag::kOther);
      const std::vector<float> g = own_gradient(numbers(weights[k]), number_of(p), rank, micro);
      std::copy(g.begin(), g.end(), gradient.data<float>());
      const Tensor* const one = &gradient;
      engine.gradients().add({&ids[k], 1}, {&one, 1});
    }
    engine.scopes().release(ids);
  }
}

inline Trained train_own(const OwnJob& job, const CommOptions& options = {}) {
  Trained out;
  std::mutex mutex;
  std::vector<std::vector<float>> all;
  run_ranks(
      job.world,
      [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(job.config), own_model(job), comm);
        const int64_t accumulation = job.config.value("gradient_accumulation_steps", 1);
        Trained mine;
        for (int step = 0; step < job.steps; ++step) {
          StepReport report;
          for (int64_t i = 0; i < accumulation; ++i) {
            run_own_batch(engine, job, comm->rank(), step * accumulation + i,
                          job.turned && step >= 2);
            report = engine.step();
          }
          EXPECT_TRUE(report.applied);
          mine.norms.push_back(report.grad_norm);
        }
        mine.weights = all_weights(engine);
        const std::lock_guard lock(mutex);
        all.push_back(mine.weights);
        if (comm->rank() == 0) out = std::move(mine);
      },
      options);
  for (const std::vector<float>& weights : all) {
    EXPECT_TRUE(same_bits(weights, out.weights)) << "ranks differ";
  }
  return out;
}

inline Json own_config(int stage, const Json& zero = Json::object(), const Json& more = {}) {
  Json config = {{"train_micro_batch_size_per_gpu", 1},
                 {"threads", 1},
                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-2}}}}},
                 {"zero_optimization", {{"stage", stage}}}};
  config["zero_optimization"].merge_patch(zero);
  if (!more.is_null()) config.merge_patch(more);
  return config;
}

}  // namespace ds::zero_test
