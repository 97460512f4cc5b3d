// Expert parallelism: however many ranks share the experts of layers, and whatever else they share,
// training computes what one rank computes that has everything.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <thread>
#include <tuple>

#include "engine/combinations.h"
#include "engine/plan.h"
#include "engine/plan_context.h"
#include "expert_parallel_world.h"
#include "infer/generate.h"
#include "models/adapters.h"
#include "models/lora.h"
#include "models/weights.h"
#include "unit/comm/processes.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

class ExpertParallel : public ::testing::TestWithParam<ExpertModel> {
 protected:
  Job job(int world, int shared_by_ranks, int stage, const Json& more = Json::object()) const {
    Job job;
    job.world = world;
    job.model = GetParam().model;
    job.config = zero_config(stage, {{"reduce_bucket_size", 3000}},
                             with({{"gradient_accumulation_steps", 2}}, more));
    if (shared_by_ranks > 1) job.config.merge_patch(shared_by(shared_by_ranks));
    return job;
  }
};

TEST_P(ExpertParallel, EveryStageHasTheBitsOfStageZero) {
  for (const Json& precision : {Json::object(), Json{{"bf16", {{"enabled", true}}}}}) {
    for (const auto& [world, ranks] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
      const Trained plain = train(job(world, ranks, 0, precision));
      EXPECT_NE(plain.losses[2], plain.losses[0]);
      for (const int stage : {1, 2, 3}) {
        SCOPED_TRACE(
            str_cat(ranks, " of ", world, " ranks, stage ", stage, ", ", dump_json(precision)));
        const Trained other = train(job(world, ranks, stage, precision));
        EXPECT_TRUE(same_bits(other.weights, plain.weights));
        EXPECT_EQ(other.losses, plain.losses);
        EXPECT_EQ(other.norms, plain.norms);
      }
    }
  }
}

// LAMB adds up the norms of a tensor, and Muon brings a matrix together, over the ranks that cut
// it.
TEST_P(ExpertParallel, OptimizersOfWholeTensorsHaveTheBitsOfStageZero) {
  for (const Json& more : kWholeTensors) {
    for (const auto& [world, ranks] : {std::pair{2, 2}, {4, 2}}) {
      const Trained plain = train(job(world, ranks, 0, more));
      EXPECT_NE(plain.losses[2], plain.losses[0]);
      for (const int stage : {1, 2, 3}) {
        SCOPED_TRACE(str_cat(ranks, " of ", world, " ranks, stage ", stage, ", ", dump_json(more)));
        const Trained other = train(job(world, ranks, stage, more));
        EXPECT_TRUE(same_bits(other.weights, plain.weights));
        EXPECT_EQ(other.losses, plain.losses);
        EXPECT_EQ(other.norms, plain.norms);
      }
    }
  }
}

// The model's numbers may depend on what a micro batch holds: room of experts and balancing losses
// are of one, whoever holds the experts.
TEST_P(ExpertParallel, LossesAreThoseOfRanksThatHaveAllExperts) {
  for (const auto& [world, ranks] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
    SCOPED_TRACE(str_cat(ranks, " of ", world, " ranks"));
    Job all = job(world, 1, 1), shared = job(world, ranks, 2);
    all.steps = shared.steps = 6;
    const Trained one = train(all), other = train(shared);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], one.losses[i], 1e-5) << "step " << i;
      EXPECT_NEAR(other.norms[i], one.norms[i], 1e-4 * one.norms[i]) << "step " << i;
    }
  }
}

TEST_P(ExpertParallel, RecomputationAndThreadsChangeNoBit) {
  const Trained plain = train(job(2, 2, 1));
  for (const Json& segments : {Json{{"enabled", true}, {"number_checkpoints", 2}},
                               Json{{"enabled", true}, {"number_checkpoints", 1}}}) {
    const Trained other =
        train(job(2, 2, 1, {{"threads", 2}, {"activation_checkpointing", segments}}));
    EXPECT_TRUE(same_bits(other.weights, plain.weights));
    EXPECT_EQ(other.losses, plain.losses);
  }
}

TEST_P(ExpertParallel, AdaptersTrainBesideExperts) {
  Job adapted = job(2, 2, 2);
  adapted.prepare = [](models::Model& model) {
    models::LoraOptions lora;
    lora.r = 2;
    lora.target_modules = {"all-linear"};
    models::add_lora(model, lora);
  };
  const Trained plain = train(adapted);
  adapted.config["zero_optimization"]["stage"] = 3;
  EXPECT_TRUE(same_bits(train(adapted).weights, plain.weights));
}

// The run's buckets are those of the domains that plans read.
TEST_P(ExpertParallel, LayoutsAreThoseOfPlans) {
  for (const auto& [ranks, stage] : {std::pair{2, 0}, {2, 1}, {4, 2}, {2, 3}, {4, 3}}) {
    SCOPED_TRACE(str_cat(ranks, " of 4 ranks, stage ", stage));
    Job shared = job(4, ranks, stage,
                     {{"zero_optimization",
                       {{"stage3_tile_size", 100}, {"stage3_param_persistence_threshold", 40}}}});
    run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = make_rank_engine(shared, comm);
      const zero::Layout& run = train_state(*engine->model()).layout();
      const nn::ParameterSet& parameters = engine->model()->parameters();
      ASSERT_EQ(run.domains().size(), 2u);
      EXPECT_EQ(run.flat().world(1), stage == 0 ? 1 : 4 / ranks);
      EXPECT_EQ(run.domains()[1].rank, comm->rank() / ranks);
      if (comm->rank() != 0) return;  // plans are of the first
      const PlanContext plan(PlanModel::of_model(*engine->model()), engine->config(), 4, 4, false);
      const zero::FlatLayout& flat = plan.flat();
      ASSERT_EQ(flat.buckets().size(), run.flat().buckets().size());
      for (size_t i = 0; i < flat.buckets().size(); ++i) {
        const zero::Bucket &one = flat.buckets()[i], &other = run.flat().buckets()[i];
        EXPECT_EQ(one.domain, other.domain);
        EXPECT_EQ(one.piece, other.piece);
        EXPECT_EQ(one.range.begin, other.range.begin);
        EXPECT_EQ(one.range.end, other.range.end);
        EXPECT_EQ(one.tile, other.tile);
        EXPECT_EQ(one.resident, other.resident);
      }
      for (nn::ParamId id = 0; id < parameters.size(); ++id) {
        EXPECT_EQ(flat.holds(id), run.flat().holds(id));
        EXPECT_EQ(plan.layout->in_parts(id), parameters[id].expert >= 0);
        EXPECT_EQ(flat.part(id).first, run.flat().part(id).first);
        EXPECT_EQ(flat.part(id).count, run.flat().part(id).count);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertParallel, ::testing::ValuesIn(expert_models({4, 8})),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ExpertParallelLayouts, FiftyStepsAreThoseOfOneRank) {
  const Trained whole = train(free_job(1, 1, 8, 1, 0));
  EXPECT_LT(whole.losses[49], whole.losses[0] - 0.3);
  const int layouts[][5] = {{2, 2, 4, 1, 0}, {4, 2, 2, 1, 1}, {4, 4, 1, 2, 2},
                            {4, 2, 1, 2, 3}, {8, 8, 1, 1, 1}, {2, 2, 1, 4, 3}};
  for (const auto& [world, ranks, micro, accumulation, stage] : layouts) {
    SCOPED_TRACE(str_cat(ranks, " of ", world, " ranks, ", accumulation, " micro batches of ",
                         micro, ", stage ", stage));
    const Trained other = train(free_job(world, ranks, micro, accumulation, stage));
    for (size_t i = 0; i < whole.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], whole.losses[i], 1e-5) << "step " << i;
    }
  }
}

// The direction of Muon moves little with what ranks' sums round, and LAMB's ratios less.
TEST(ExpertParallelLayouts, OptimizersOfWholeTensorsTrainAsOneRank) {
  for (const Json& more : kWholeTensors) {
    Job alone = free_job(1, 1, 8, 1, 0, more);
    alone.steps = 12;
    const Trained whole = train(alone);
    EXPECT_LT(whole.losses[11], whole.losses[0] - 0.1);
    const int layouts[][4] = {{2, 2, 4, 1}, {4, 2, 2, 2}, {4, 2, 2, 3}};
    for (const auto& [world, ranks, micro, stage] : layouts) {
      SCOPED_TRACE(str_cat(ranks, " of ", world, " ranks, stage ", stage, ", ", dump_json(more)));
      Job job = free_job(world, ranks, micro, 1, stage, more);
      job.steps = 12;
      const Trained other = train(job);
      for (size_t i = 0; i < whole.losses.size(); ++i) {
        EXPECT_NEAR(other.losses[i], whole.losses[i], 1e-4) << "step " << i;
      }
    }
  }
}

// Each group of consecutive ranks has all experts, cut among those that hold the same ones there.
TEST(ExpertParallelLayouts, GroupsOfRanksHoldCopies) {
  for (const Json& precision : {Json::object(), Json{{"bf16", {{"enabled", true}}}}}) {
    const struct { int world, ranks, shard; } variants[] = {{4, 2, 2}, {8, 2, 4}, {4, 2, 4}};
    for (const auto& [world, ranks, shard] : variants) {
      SCOPED_TRACE(
          str_cat(shard, " of ", world, " ranks, experts on ", ranks, ", ", dump_json(precision)));
      const auto trained = [&, world = world, ranks = ranks](const Json& zero) {
        Job job =
            free_job(world, ranks, 8 / world, 1, 3, with(precision, {{"zero_optimization", zero}}));
        job.config["zero_optimization"]["reduce_bucket_size"] = 3000;
        job.config["zero_optimization"]["stage3_param_persistence_threshold"] = 40;
        job.steps = 10;
        return train(job);
      };
      const Trained plain = trained(Json::object());
      const Trained near = trained({{"zero_hpz_partition_size", shard}});
      EXPECT_TRUE(same_bits(near.weights, plain.weights));
      EXPECT_EQ(near.losses, plain.losses);
      EXPECT_EQ(near.norms, plain.norms);
      // Gradients of groups are averaged, and then those averages: rounded in other places.
      const Trained copies = trained({{"mics_shard_size", shard}});
      const bool fp32 = precision.empty();
      for (size_t i = 0; i < plain.losses.size(); ++i) {
        EXPECT_NEAR(copies.losses[i], plain.losses[i], (fp32 ? 1e-5 : 1e-2) * plain.losses[i]);
        EXPECT_NEAR(copies.norms[i], plain.norms[i], (fp32 ? 1e-4 : 3e-2) * plain.norms[i]);
      }
    }
  }
}

// By name.
std::map<std::string, std::vector<float>> gradients_of(Engine& engine) {
  std::map<std::string, std::vector<float>> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    out[parameters[id].name] = flat(engine.gradients().get(parameters[id].name));
  }
  return out;
}

// Each expert multiplies the rows of all ranks in the order in which one process has them, and
// halves are exact.
TEST(ExpertParallelLayouts, GradientsOfExpertsHaveTheBitsOfOneRank) {
  const auto config = [](int world, int ranks, int stage) {
    return free_job(world, ranks, 8 / world, 1, stage).config;
  };
  Engine alone(dump_json(config(1, 1, 0)), models::Model::create(free_model(), 3), nullptr);
  alone.backward(alone.forward(batch_of(0, 8)));
  const auto whole = gradients_of(alone);
  for (const auto& [world, ranks] : {std::pair{2, 2}, {4, 4}, {4, 2}}) {
    for (const int stage : {0, 1, 3}) {
      SCOPED_TRACE(str_cat(ranks, " of ", world, " ranks, stage ", stage));
      run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
        const int micro = 8 / world;
        Engine engine(dump_json(config(world, ranks, stage)),
                      models::Model::create(free_model(), 3), comm);
        engine.backward(engine.forward(batch_of(comm->rank() * micro, micro)));
        const auto mine = gradients_of(engine);
        const nn::ParameterSet& parameters = engine.model()->parameters();
        for (nn::ParamId id = 0; id < parameters.size(); ++id) {
          const std::string& name = parameters[id].name;
          const std::vector<float>&one = whole.at(name), &other = mine.at(name);
          if (parameters[id].expert >= 0 && world == ranks) {
            EXPECT_TRUE(same_bits(one, other)) << name;
          }
          float largest = 0;
          for (const float g : one) largest = std::max(largest, std::abs(g));
          EXPECT_LE(largest_difference(one, other), 1e-4 * largest) << name;
        }
      });
    }
  }
}

int64_t calls_of(const Communicator& comm, Collective kind) {
  return comm.total_traffic()[static_cast<size_t>(kind)].calls;
}

TEST(ExpertParallelTraffic, TwoExchangesPerLayerAndDirection) {
  for (const bool again : {false, true}) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(
          str_cat(ranks, " share experts, ", again ? "with" : "without", " recomputation"));
      Job job = free_job(2, ranks, 2, 2, 1, {{"activation_checkpointing", {{"enabled", again}}}});
      job.model = free_model({{"n_layer", 4}, {"expert_interval", 1}});
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = make_rank_engine(job, comm);
        const int64_t rows = calls_of(*comm, Collective::kAllToAllV);
        const int64_t counts = calls_of(*comm, Collective::kAllToAll);
        engine->train_batch();
        const int layers = 4, micro_batches = 2, forward = again ? 2 : 1;
        const int shared = ranks > 1 ? layers * micro_batches : 0;
        EXPECT_EQ(calls_of(*comm, Collective::kAllToAllV) - rows, shared * 2 * (forward + 1));
        EXPECT_EQ(calls_of(*comm, Collective::kAllToAll) - counts, shared * forward);
      });
    }
  }
}

int64_t moved(const Json& plan, const char* collective, const char* key) {
  int64_t out = 0;
  for (const Json& one : plan["moved_per_step"]) {
    if (one["collective"] == collective) out += one[key].get<int64_t>();
  }
  return out;
}

// Where every token goes to all experts, loads are equal.
TEST(ExpertParallelTraffic, IsAsPlanned) {
  for (const int ranks : {2, 4}) {
    for (const int stage : {0, 1, 3}) {
      for (const Json& more :
           {Json::object(), Json{{"bf16", {{"enabled", true}}}}, kWholeTensors[0], kWholeTensors[1],
            Json{{"zero_optimization", {{"mics_shard_size", 2}}}},
            Json{{"zero_optimization", {{"zero_hpz_partition_size", 2}}}}}) {
        const bool parts = more.contains("zero_optimization") && !more.contains("optimizer");
        if (parts && (stage < 3 || ranks > 2)) continue;

        SCOPED_TRACE(str_cat(ranks, " of 4 ranks, stage ", stage, ", ", dump_json(more)));
        Job job = free_job(4, ranks, 2, 2, stage, more);
        job.config["zero_optimization"]["reduce_bucket_size"] = 3000;
        job.model = free_model({{"num_experts", 4}, {"moe_top_k", 4}});
        PlanOptions options;
        options.world = 4;
        options.sequence_length = 16;
        const Json plan = plan_training(job.model, dump_json(job.config), options);
        run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
          const auto engine = make_rank_engine(job, comm);
          for (int i = 0; i < 3; ++i) engine->train_batch();
          const TrafficTable before = comm->total_traffic();
          engine->train_batch();
          const TrafficTable after = comm->total_traffic();
          if (comm->rank() != 0) return;
          for (const Collective kind :
               {Collective::kAllToAll, Collective::kAllToAllV, Collective::kAllReduce,
                Collective::kReduceScatter, Collective::kAllGather}) {
            const std::string name(collective_name(kind));
            const auto i = static_cast<size_t>(kind);
            EXPECT_EQ(after[i].calls - before[i].calls, moved(plan, name.c_str(), "calls")) << name;
            EXPECT_EQ(after[i].within_node - before[i].within_node,
                      moved(plan, name.c_str(), "within_node"))
                << name;
          }
        });
      }
    }
  }
}

int64_t held(const Engine& engine, MemoryTag tag) {
  return engine.model()->device()->account().now(tag);
}

TEST(ExpertParallelMemory, EachRankHasItsExpertsAlone) {
  const Json model = free_model({{"n_embd", 64}, {"num_experts", 16}, {"expert_interval", 1}});
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const auto memory = [&](int ranks) {
      Job job = free_job(4, ranks, 1, 1, stage);
      job.config["optimizer"] = {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}};
      job.model = model;
      PlanOptions options;
      options.world = 4;
      options.sequence_length = 16;
      const Json plan = plan_training(job.model, dump_json(job.config), options)["memory_per_rank"];
      int64_t all = 0;
      std::mutex mutex;
      run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = make_rank_engine(job, comm);
        engine->train_batch();
        const auto check = [&](MemoryTag tag, const char* name) {
          const auto planned = plan[name].get<double>();
          EXPECT_NEAR(static_cast<double>(held(*engine, tag)), planned, 0.05 * planned) << name;
        };
        check(MemoryTag::kParameters, "parameters");
        check(MemoryTag::kGradients, "gradients");
        check(MemoryTag::kOptimizer, "optimizer");
        const std::lock_guard lock(mutex);
        all = held(*engine, MemoryTag::kParameters) + held(*engine, MemoryTag::kGradients) +
              held(*engine, MemoryTag::kOptimizer);
      });
      return static_cast<double>(all);
    };
    const double all = memory(1), shared = memory(4);
    // Experts are 16/17 of the model; stage 3 has spread them already.
    if (stage == 0) {
      EXPECT_LT(shared, 0.35 * all);
    } else {
      EXPECT_LT(shared, stage == 3 ? 1.05 * all : 0.75 * all);
    }
  }
}

TEST(ExpertParallelSteps, RanksMayRunOutOfBatches) {
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    std::vector<std::vector<float>> all(4);
    std::vector<std::vector<float>> plain(4);
    for (const int ranks : {1, 2}) {
      run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
        const int rank = comm->rank();
        Engine engine(dump_json(free_job(4, ranks, 2, 1, stage).config),
                      models::Model::create(free_model(), 3), comm);
        for (int i = 0; i < (rank == 3 ? 4 : 2); ++i) {
          engine.backward(engine.forward(batch_of(8 * i + 2 * rank, 2)));
          engine.step();
        }
        engine.join();
        EXPECT_EQ(engine.progress().steps, 4);
        (ranks == 1 ? plain : all)[static_cast<size_t>(rank)] = all_weights(engine);
      });
    }
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(same_bits(all[rank], all[0]));
      EXPECT_LT(largest_difference(all[rank], plain[rank]), 3e-6);
    }
  }
}

TEST(ExpertParallelSteps, GradientsMayStayUntilAStep) {
  for (const int stage : {0, 1}) {
    const auto trained = [&](bool no_sync) {
      std::vector<float> out;
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(free_job(2, 2, 2, 2, stage).config),
                      models::Model::create(free_model(), 3), comm);
        const auto pass = [&](int index) {
          engine.backward(engine.forward(batch_of(4 * index + 2 * comm->rank(), 2)));
        };
        if (no_sync) engine.gradients().begin_no_sync();
        pass(0);
        if (no_sync) {
          engine.gradients().end_no_sync();
        } else {
          engine.step();
        }
        pass(1);
        EXPECT_TRUE(engine.step().applied);
        const std::vector<float> weights = all_weights(engine);
        if (comm->rank() == 0) out = weights;
      });
      return out;
    };
    EXPECT_LT(largest_difference(trained(true), trained(false)), 1e-7) << "stage " << stage;
  }
}

// A gradient that is not finite is found and named by all, whoever holds it.
TEST(ExpertParallelSteps, AreSkippedTogether) {
  const std::string name = "h.1.mlp.experts.7.c_proj.weight";
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    run_ranks(4, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = make_rank_engine(free_job(4, 4, 2, 1, stage), comm);
      engine->backward(engine->forward(batch_of(2 * comm->rank(), 2)));
      const Tensor gradient = engine->gradients().get(name);
      gradient.data<float>()[5] = std::numeric_limits<float>::infinity();
      engine->gradients().set(name, gradient);
      const StepReport report = engine->step();
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(report.first_bad_tensor, name);
      EXPECT_EQ(report.first_bad_element, 5);
      EXPECT_TRUE(engine->train_batch().applied);
    });
  }
}

// What else changes what travels changes nothing of what is trained.
TEST(ExpertParallelSteps, GoWithOtherWaysOfReducing) {
  const auto with_zero = [](int ranks, int stage, const Json& zero, const Json& more) {
    Job job = free_job(4, ranks, 2, 1, stage, more);
    job.steps = 4;
    job.config["zero_optimization"].merge_patch(zero);
    return train(job);
  };
  const Trained plain = with_zero(2, 1, Json::object(), Json::object());
  for (const Json& zero : {Json{{"overlap_comm", true}, {"reduce_bucket_size", 2000}},
                           Json{{"reduce_scatter", false}}}) {
    for (const int stage : {1, 2}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", ", dump_json(zero)));
      EXPECT_TRUE(same_bits(with_zero(2, stage, zero, Json::object()).weights, plain.weights));
    }
  }
  Json small = {{"stage3_param_persistence_threshold", 600}, {"stage3_max_live_parameters", 9000}};
  EXPECT_TRUE(same_bits(with_zero(2, 3, small, Json::object()).weights, plain.weights));
  // Products of tiles add up their sums otherwise.
  small["stage3_tile_size"] = 700;
  EXPECT_LT(largest_difference(with_zero(2, 3, small, Json::object()).weights, plain.weights),
            3e-6);
  const Json sums = {{"gradient_allreduce_op", "sum"}, {"optimizer", {{"params", {{"lr", 0.01}}}}}};
  EXPECT_LT(largest_difference(with_zero(2, 1, Json::object(), sums).weights,
                               with_zero(1, 1, Json::object(), sums).weights),
            3e-6);
  // Weights of experts travel in 8 bits between two ranks, or not at all.
  const Json quantized = {{"zero_quantized_weights", true}};
  EXPECT_NEAR(with_zero(2, 3, quantized, Json::object()).losses[3], plain.losses[3], 0.02);
  EXPECT_NEAR(with_zero(4, 3, quantized, Json::object()).losses[3], plain.losses[3], 0.02);
}

TEST(ExpertParallelSteps, SanityChecksHold) {
  for (const int stage : {0, 1, 3}) {
    Job job = free_job(4, 2, 2, 1, stage, {{"bf16", {{"enabled", true}}}});
    job.steps = 2;
    job.config["zero_optimization"]["enable_sanity_checks"] = true;
    job.config["zero_optimization"]["ignore_unused_parameters"] = false;
    EXPECT_EQ(train(job).losses.size(), 2u);
  }
}

TEST(ExpertParallelSteps, EvaluationIsThatOfOneRank) {
  const auto evaluated = [](int world, int ranks) {
    double loss = 0;
    run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = make_rank_engine(free_job(world, ranks, 2, 1, 3), comm);
      const double mine = engine->evaluate(*periodic_data(), 5);
      if (comm->rank() == 0) loss = mine;
    });
    return loss;
  };
  const double alone = evaluated(1, 1);
  // Products of more rows may be cut otherwise.
  EXPECT_NEAR(evaluated(2, 2), alone, 1e-6);
  EXPECT_NEAR(evaluated(4, 4), alone, 1e-6);
}

TEST(ExpertParallelLoads, AreOfAllRanks) {
  std::vector<Json> loads;
  for (const auto& [world, ranks] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 2}}) {
    run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = make_rank_engine(free_job(world, ranks, 8 / world, 1, 1), comm);
      engine->train_batch();
      if (comm->rank() + 1 == world) loads.push_back(engine->experts());
    });
  }
  ASSERT_EQ(total(loads[0]["layers"][0]["chosen"]), 2 * 8 * 16);
  for (const Json& other : loads) EXPECT_EQ(other, loads[0]);
}

// A process that is killed among its exchanges is named by the others.
TEST(ExpertParallelRanks, OneThatIsLostIsNamed) {
  for (const int victim : {0, 2}) {
    CommOptions options = ds::testing::quick_options(2000);
    options.rendezvous_deadline = std::chrono::seconds(60);
    ds::testing::Processes processes(
        3, options, [victim](int rank, const std::function<ds::testing::CommPtr()>& join) {
          const std::shared_ptr<Communicator> comm = join();
          Job job = free_job(3, 3, 2, 1, 1);
          job.model = free_model({{"num_experts", 6}, {"n_layer", 6}, {"expert_interval", 1}});
          const auto engine = make_rank_engine(job, comm);
          std::thread end;
          if (rank == victim) {
            end = std::thread([&] {
              while (calls_of(*comm, Collective::kAllToAllV) < 100) std::this_thread::yield();
              ::kill(::getpid(), SIGKILL);
            });
          }
          for (int i = 0; i < 100000; ++i) engine->train_batch();
          if (end.joinable()) end.join();
        });
    const auto reports = processes.reports({victim});
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(reports[static_cast<size_t>(rank)], HasSubstr(str_cat("rank ", victim, " ")));
    }
  }
}

TEST(ExpertParallelRefusals, NameWhatDoesNotFit) {
  const auto why = [](Code code, int world, const Json& change, const Json& model = free_model()) {
    std::string text;
    Json config = with(zero_config(1), change);
    run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
      const std::string mine = error_of(code, [&] {
        const Engine engine(dump_json(config), models::Model::create(model, 3), comm);
      });
      if (comm->rank() == 0) text = mine;
    });
    return text;
  };
  EXPECT_THAT(why(Code::kConfig, 3, shared_by(2)), HasSubstr("do not divide the 3 ranks"));
  EXPECT_THAT(why(Code::kConfig, 1, shared_by(2)), HasSubstr("do not divide the 1 rank of"));
  EXPECT_THAT(why(Code::kConfig, 4, shared_by(4), gpt_moe({{"num_experts", 6}})),
              HasSubstr("cannot share the 6 experts"));
  EXPECT_THAT(why(Code::kConfig, 2, shared_by(2), model_config()),
              HasSubstr("no layers of experts"));
  EXPECT_THAT(why(Code::kConfig, 2, {{"expert_parallel", {{"enabled", true}, {"top_k", 4}}}}),
              HasSubstr("a router other than that of the model's config.json"));
  EXPECT_THAT(why(Code::kUnsupported, 2,
                  with(shared_by(2), {{"zero_optimization",
                                       {{"zenflow", {{"topk_ratio", 0.1}}},
                                        {"offload_optimizer", {{"device", "cpu"}}}}}})),
              HasSubstr("all matrices of the model"));
  for (const char* key : {"mics_shard_size", "zero_hpz_partition_size"}) {
    EXPECT_THAT(why(Code::kConfig, 8,
                    with(shared_by(4), {{"zero_optimization", {{"stage", 3}, {key, 2}}}})),
                HasSubstr(str_cat(key, ": 2 ranks do not hold all experts of a layer")));
  }
  EXPECT_THAT(why(Code::kUnsupported, 2,
                  with(shared_by(2), {{"zero_optimization",
                                       {{"stage", 3}, {"zero_quantized_gradients", true}}}})),
              HasSubstr("zero_quantized_gradients"));
  Json plan_config = with(zero_config(1), shared_by(4));
  EXPECT_THAT(error_of(Code::kConfig,
                       [&] {
                         PlanOptions options;
                         options.world = 6;
                         plan_training(free_model(), dump_json(plan_config), options);
                       }),
              HasSubstr("do not divide the 6 ranks"));
}

TEST(ExpertParallelRefusals, MixedExpertsAreNamed) {
  Job job = free_job(2, 2, 2, 1, 1);
  job.prepare = [](models::Model& model) {
    models::set_trainable(model, {"h.1.mlp.experts.6.c_fc.weight"}, false);
  };
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    EXPECT_THAT(error_of(Code::kConfig, [&] { make_rank_engine(job, comm); }),
                HasSubstr("experts.6.c_fc.weight is frozen or trained unlike"));
  });
  // All alike are fine.
  job.prepare = [](models::Model& model) {
    models::set_trainable(model, {"h.1.mlp.experts.*"}, false);
  };
  job.steps = 2;
  EXPECT_EQ(train(job).losses.size(), 2u);
}

// Computing with the model outside its engine needs experts that other ranks hold.
TEST(ExpertParallelRefusals, OtherPasses) {
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = make_rank_engine(free_job(2, 2, 2, 1, 0), comm);
    ThreadPool pool(1);
    const OpContext ctx{engine->model()->device(), &pool};
    const Tensor ids = Tensor::zeros(ctx.device, DType::kInt32, {1, 3}, MemoryTag::kOther);
    const std::string why = error_of(Code::kUnsupported, [&] {
      infer::batch_logits(ctx, engine->model()->weights().reader(), engine->model()->architecture(),
                          ids, Tensor());
    });
    EXPECT_THAT(why, HasSubstr("expert_parallel"));
    // A copy has all experts.
    const auto copy = engine->model()->copy();
    const Tensor logits =
        infer::batch_logits(ctx, copy->weights().reader(), copy->architecture(), ids, Tensor());
    const auto fresh = models::Model::create(free_model(), 3);
    fresh->weights().make(ctx);
    EXPECT_TRUE(
        same_bits(flat(logits), flat(infer::batch_logits(ctx, fresh->weights().reader(),
                                                         fresh->architecture(), ids, Tensor()))));
    EXPECT_THAT(error_of(Code::kUnsupported,
                         [&] {
                           const Tensor one = engine->model()->get("wte.weight");
                           const Tensor* const all[] = {&one};
                           const int64_t index[] = {0};
                           engine->gradients().add(index, all);
                         }),
                HasSubstr("expert_parallel"));
  });
}

}  // namespace
}  // namespace ds::zero_test
