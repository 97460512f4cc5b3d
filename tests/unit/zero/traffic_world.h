// Runs whose bytes between ranks are counted, on nodes that ranks pretend.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <random>

#include "zero_world.h"

namespace ds::zero_test {

inline CommOptions two_nodes() {
  CommOptions options;
  options.ranks_per_node = 2;
  return options;
}

// What all ranks sent, with what they trained.
struct Measured {
  Trained trained;
  TrafficTable table{};

  const Traffic& sent(Collective kind) const { return table[static_cast<size_t>(kind)]; }
  // Threads: any.
  void add(const TrafficTable& start, const Communicator& comm) {
    const TrafficTable end = comm.total_traffic();
    const std::lock_guard lock(mutex_of());
    for (size_t i = 0; i < table.size(); ++i) {
      table[i].calls += end[i].calls - start[i].calls;
      table[i].within_node += end[i].within_node - start[i].within_node;
      table[i].across_nodes += end[i].across_nodes - start[i].across_nodes;
      table[i].messages_across += end[i].messages_across - start[i].messages_across;
    }
  }

 private:
  static std::mutex& mutex_of() {
    static std::mutex mutex;
    return mutex;
  }
};

// Trains; counts from the first step to the last.
inline Measured measure(const Job& run, const CommOptions& nodes = two_nodes()) {
  Measured out;
  run_ranks(
      run.world,
      [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine(run, comm);
        const TrafficTable start = comm->total_traffic();
        Trained mine;
        for (int i = 0; i < run.steps; ++i) {
          const StepReport report = engine->train_batch();
          mine.losses.push_back(report.loss);
          mine.norms.push_back(report.grad_norm);
        }
        out.add(start, *comm);
        mine.weights = all_weights(*engine);
        if (comm->rank() == 0) out.trained = std::move(mine);
      },
      nodes);
  return out;
}

inline int64_t gathered_across(const Communicator& comm) {
  return comm.total_traffic()[static_cast<size_t>(Collective::kAllGather)].across_nodes;
}

// The same for a rank in every run.
inline MicroBatch random_batch(int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 17);
  std::vector<int64_t> ids, labels;
  for (int i = 0; i < 32; ++i) {
    ids.push_back(static_cast<int64_t>(random() % 61));
    labels.push_back(static_cast<int64_t>(random() % 61));
  }
  MicroBatch batch;
  batch.ids = ids_tensor(ids, 2);
  batch.labels = ids_tensor(labels, 2);
  return batch;
}

// The trainable ones.
inline std::vector<nn::Parameter> named_parameters(const Engine& engine) {
  std::vector<nn::Parameter> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (parameters[id].trainable) out.push_back(parameters[id]);
  }
  return out;
}

}  // namespace ds::zero_test
