// What training state takes on each rank, measured by the memory accounts of four ranks that train
// a model of 100 million parameters in bf16, beside what ZeRO's stages should leave there.
#include <array>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "comm/factory.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "models/model.h"

namespace {

constexpr int kWorld = 4;

const ds::Json& model_config() {
  static const ds::Json config = {{"model_type", "gpt2"}, {"vocab_size", 16384},
                                  {"n_positions", 64},    {"n_embd", 768},
                                  {"n_layer", 12},        {"n_head", 12}};
  return config;
}

struct Held {
  int64_t parameters = 0;
  std::array<int64_t, 3> peak = {};  // weights and masters, gradients, moments
};

Held measure(const ds::Json& config) {
  const auto group = ds::make_local_group(kWorld, {});
  Held most;
  std::mutex mutex;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto model = ds::models::Model::create(model_config(), 1);
      ds::Engine engine(ds::dump_json(config), model, group[static_cast<size_t>(rank)]);
      const ds::Tensor ids =
          ds::Tensor::zeros(model->device(), ds::DType::kInt64, {1, 8}, ds::MemoryTag::kOther);
      ds::MicroBatch batch;
      batch.ids = ids;
      batch.labels = ids;
      for (int step = 0; step < 2; ++step) {
        engine.backward(engine.forward(batch));
        engine.step();
      }
      const ds::MemoryAccount& account = model->device()->account();
      const std::lock_guard lock(mutex);
      most.parameters = model->parameters().elements();
      const ds::MemoryTag tags[] = {ds::MemoryTag::kParameters, ds::MemoryTag::kGradients,
                                    ds::MemoryTag::kOptimizer};
      for (size_t i = 0; i < 3; ++i) {
        most.peak[i] = std::max(most.peak[i], account.peak(tags[i]));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return most;
}

}  // namespace

int main() {
  try {
    std::printf("peak bytes per parameter and rank at %d ranks, bf16 with fp32 masters, Adam\n",
                kWorld);
    std::printf("%-6s %10s %10s %10s %10s %10s %10s\n", "stage", "weights", "gradients", "moments",
                "together", "ZeRO", "planned");
    for (int stage = 0; stage <= 3; ++stage) {
      const ds::Json config = {{"train_micro_batch_size_per_gpu", 1},
                               {"threads", 1},
                               {"bf16", {{"enabled", true}}},
                               {"data_types", {{"grad_accum_dtype", "bf16"}}},
                               {"zero_optimization", {{"stage", stage}}},
                               {"optimizer", {{"type", "Adam"}, {"params", {{"lr", 1e-4}}}}}};
      const Held held = measure(config);
      ds::PlanOptions options;
      options.world = kWorld;
      const ds::Json plan = ds::plan_training(model_config(), ds::dump_json(config), options);
      const auto p = static_cast<double>(held.parameters);
      // Gradients are spread from stage 1 on.
      const double share = stage == 0 ? 1 : 1.0 / kWorld;
      const double zero = 2 * (stage == 3 ? share : 1) + 14 * share;
      double together = 0;
      std::printf("%-6d", stage);
      for (const int64_t bytes : held.peak) {
        std::printf(" %10.3f", static_cast<double>(bytes) / p);
        together += static_cast<double>(bytes) / p;
      }
      std::printf(" %10.3f %10.3f %10.3f\n", together, zero,
                  plan["memory_per_rank"]["model_states"].get<double>() / p);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_states: %s\n", error.what());
    return 1;
  }
  return 0;
}
