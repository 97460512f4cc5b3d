// Ranks as threads of the test: engines over one group, trained on one data set.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "../engine/engine_world.h"
#include "attached_state.h"
#include "comm/factory.h"
#include "optim/array_factory.h"

namespace ds::zero_test {

using namespace engine_test;

// Runs body(rank's communicator) on one thread per rank; the first error is rethrown.
inline void run_ranks(int world,
                      const std::function<void(const std::shared_ptr<Communicator>&)>& body,
                      const CommOptions& options = {}) {
  const auto group = make_local_group(world, options);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(group[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
        group[rank]->abort("a rank of the test failed");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Every fp32 weight, parameter after parameter (every rank).
inline std::vector<float> all_weights(Engine& engine) {
  const models::Model::Use use(*engine.model());
  zero::TrainState& state = train_state(*engine.model());
  ThreadPool pool(1);
  const OpContext ctx{engine.model()->device(), &pool};
  std::vector<float> out;
  for (nn::ParamId id = 0; id < state.parameters().size(); ++id) {
    const std::vector<float> one = flat(state.masters().read(ctx, id));
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

struct Trained {
  std::vector<float> weights;
  std::vector<double> losses, norms;
};

struct Job {
  int world = 2;
  Json config;
  int steps = 3;
  Json model = model_config();
  // Freezes, adapts, ... what a rank has made.
  std::function<void(models::Model&)> prepare = [](models::Model&) {};
  // Makes what a rank's arrays come from; null: memory.
  std::function<std::shared_ptr<optim::ArrayFactory>()> arrays = [] { return nullptr; };
};

inline std::shared_ptr<models::Model> make_rank_model(const Job& run, uint64_t seed = 3) {
  auto model = models::Model::create(run.model, seed);
  run.prepare(*model);
  return model;
}

inline std::unique_ptr<Engine> make_rank_engine(const Job& run,
                                                const std::shared_ptr<Communicator>& comm) {
  auto engine = std::make_unique<Engine>(dump_json(run.config), make_rank_model(run), comm,
                                         ReadOptions{}, run.arrays());
  engine->set_dataset(periodic_data());
  return engine;
}

// What rank 0 has in the end; every rank must have the same.
inline Trained train(const Job& run) {
  Trained out;
  std::mutex mutex;
  std::vector<std::vector<float>> others;
  run_ranks(run.world, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(run, comm);
    Trained mine;
    for (int i = 0; i < run.steps; ++i) {
      const StepReport report = engine->train_batch();
      mine.losses.push_back(report.loss);
      mine.norms.push_back(report.grad_norm);
    }
    mine.weights = all_weights(*engine);
    const std::lock_guard lock(mutex);
    others.push_back(mine.weights);
    if (comm->rank() == 0) out = std::move(mine);
  });
  for (const std::vector<float>& weights : others) {
    EXPECT_TRUE(same_bits(weights, out.weights)) << "ranks differ";
  }
  return out;
}

inline Json zero_config(int stage, const Json& zero = Json::object(), const Json& more = {}) {
  Json config = with(base_config(), {{"train_micro_batch_size_per_gpu", 2},
                                     {"gradient_accumulation_steps", 1},
                                     {"zero_optimization", {{"stage", stage}}}});
  config["zero_optimization"].merge_patch(zero);
  if (!more.is_null()) config.merge_patch(more);
  return config;
}

}  // namespace ds::zero_test
