// Ranks as threads with a GPU each: engines over one group of NCCL, beside the same on the CPU.
// Where NCCL and CUDA are stand-ins there are four GPUs.
#pragma once

#include "comm/nccl/nccl_library.h"
#include "cuda/model_world.h"
#include "cuda/stand_ins.h"
#include "models/adapters.h"
#include "models/lora.h"
#include "unit/zero/zero_world.h"

namespace ds::gpu_zero {

using zero_test::Job;
using zero_test::run_ranks;
using zero_test::zero_config;
using namespace gpu_test;  // NOLINT: small models and data

// Sums of NCCL's stand-in are those of the CPU: in order of ranks, in fp32, rounded once.
inline const bool kSumsInOrder = testing::stand_ins_or_null() != nullptr;

inline CommOptions nccl_options() {
  CommOptions options;
  options.transport = TransportKind::kNccl;
  options.deadline = std::chrono::seconds(60);
  if (const auto* const stand_ins = testing::stand_ins_or_null()) {
    options.nccl_library = stand_ins->nccl_library;
  }
  return options;
}

class GpuZero : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto* const stand_ins = testing::stand_ins_or_null()) {
      stand_ins->begin(4, int64_t{256} << 20);
    }
    std::string why_none;
    gpus_ = static_cast<int>(list_cuda_devices(&why_none).size());
    if (gpus_ < least_gpus()) {
      GTEST_SKIP() << "needs " << least_gpus()
                   << " GPUs: " << (gpus_ == 0 ? why_none : str_cat("found ", gpus_));
    }
    try {
      comm::nccl::open_library(nccl_options().nccl_library);
    } catch (const Error& error) {
      GTEST_SKIP() << "needs NCCL: " << error.message();
    }
  }
  void TearDown() override {
    if (const auto* const stand_ins = testing::stand_ins_or_null()) {
      stand_ins->expect_nothing_left();
    }
  }

  virtual int least_gpus() const { return 2; }

  int gpus_ = 0;
};

inline Json tiny_model(double dropout = 0.1) {
  return with(model_config(dropout), {{"n_positions", 16}, {"n_embd", 16}, {"n_head", 2}});
}

// What is cut finely, so that all that ranks do is seen on a tiny model.
inline const Json kBf16 = {{"bf16", {{"enabled", true}}}};
inline const Json kSplit = {{"bf16", {{"enabled", true}, {"split_master", true}}}};
inline Json none() { return Json::object(); }

inline Json fine(const Json& more = Json::object()) {
  return with(Json{{"reduce_bucket_size", 2000},
                   {"stage3_param_persistence_threshold", 20},
                   {"stage3_prefetch_bucket_size", 2500},
                   {"stage3_max_live_parameters", 5000},
                   {"stage3_max_reuse_distance", 1500}},
              more);
}

inline void add_adapters(models::Model& model) {
  models::LoraOptions lora;
  lora.r = 3;
  lora.target_modules = {"all-linear"};
  lora.seed = 5;
  models::add_lora(model, lora);
}

enum class Where { kCpu, kGpus };

inline std::unique_ptr<Engine> make_rank_engine(Where where, const Job& run,
                                                const std::shared_ptr<Communicator>& comm) {
  auto model = zero_test::make_rank_model(run);
  if (where == Where::kGpus) model->set_device(make_cuda_device(comm->rank()));
  auto engine = std::make_unique<Engine>(dump_json(run.config), model, comm);
  engine->set_dataset(periodic_data(8));
  return engine;
}

struct Trained {
  std::vector<float> weights, states;
  std::vector<double> losses, norms;
  double evaluated = 0;
};

// What a rank has after the steps (every rank).
inline Trained train_steps(Engine& engine, int steps) {
  Trained out;
  for (int i = 0; i < steps; ++i) {
    const StepReport report = engine.train_batch();
    out.losses.push_back(report.loss);
    out.norms.push_back(report.grad_norm);
  }
  out.evaluated = engine.evaluate(*periodic_data(8), 2);
  out.weights = weights_of(engine);
  out.states = states_of(engine);
  return out;
}

inline CommOptions options_of(Where where, int ranks_per_node = 0) {
  CommOptions options = where == Where::kGpus ? nccl_options() : CommOptions();
  options.ranks_per_node = ranks_per_node;
  return options;
}

// Runs `body` on every rank with its engine.
inline void on_ranks(Where where, const Job& run,
                     const std::function<void(Engine&, Communicator&)>& body,
                     int ranks_per_node = 0) {
  run_ranks(
      run.world,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = make_rank_engine(where, run, comm);
        body(*engine, *comm);
      },
      options_of(where, ranks_per_node));
}

// What rank 0 has in the end; every rank must have the same.
inline Trained train(Where where, const Job& run, int ranks_per_node = 0) {
  std::vector<Trained> all(static_cast<size_t>(run.world));
  on_ranks(
      where, run,
      [&](Engine& engine, Communicator& comm) {
        all[static_cast<size_t>(comm.rank())] = train_steps(engine, run.steps);
      },
      ranks_per_node);
  for (const Trained& one : all) {
    EXPECT_TRUE(same_bits(one.weights, all[0].weights)) << "ranks differ";
    EXPECT_EQ(one.losses, all[0].losses);
  }
  return all[0];
}

inline void expect_same(const Trained& actual, const Trained& expected) {
  EXPECT_TRUE(same_bits(actual.weights, expected.weights))
      << largest_difference(actual.weights, expected.weights);
  EXPECT_TRUE(same_bits(actual.states, expected.states));
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.norms, expected.norms);
  EXPECT_EQ(actual.evaluated, expected.evaluated);
}

// Losses and norms up to a share of themselves, weights up to a difference.
inline void expect_near(const Trained& actual, const Trained& expected, double loss,
                        double weight) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < actual.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], loss * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(actual.norms[i], expected.norms[i], 10 * loss * expected.norms[i]) << "step " << i;
  }
  EXPECT_LT(largest_difference(actual.weights, expected.weights), weight);
}

}  // namespace ds::gpu_zero
