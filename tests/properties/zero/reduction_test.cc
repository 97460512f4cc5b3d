// How gradients become one: operations, factors, buckets, accumulation. Expected weights are those
// of one process that is given the mean.
#include "base/log.h"
#include "unit/zero/traffic_world.h"
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Combine;
using ::testing::Values;

const std::vector<Shape> kReducedShapes = {{19, 3}, {7}, {1}, {2, 5, 3}, {40}};

Json sgd(double lr = 0.5) {
  return {{"optimizer", {{"type", "SGD"}, {"params", {{"lr", lr}, {"momentum", 0.5}}}}},
          {"zero_allow_untested_optimizer", true}};
}

// Three steps of a rank; micro batch by micro batch.
std::vector<float> run(const Json& config, int world, int64_t steps, DType type = DType::kFloat32) {
  std::vector<float> out;
  const int64_t accumulation = config.value("gradient_accumulation_steps", 1);
  run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config), given_model(kReducedShapes, type), comm);
    for (int64_t i = 0; i < steps * accumulation; ++i) {
      give_exact(engine, comm->rank(), i);
      EXPECT_EQ(engine.step().applied, (i + 1) % accumulation == 0);
    }
    const std::vector<float> mine = values(engine);
    if (comm->rank() == 0) out = mine;
  });
  return out;
}

class Reduction : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Stages, Reduction, Values(0, 1, 2, 3),
                         [](const auto& one) { return str_cat("Stage", one.param); });

// Sums are the world times the mean; factors that divide before the reduction and multiply after it
// change no bit.
TEST_P(Reduction, SumsFactorsAndMeansAgree) {
  constexpr int kWorld = 2, kSteps = 3;
  const auto exact = [](int64_t id, int64_t i, int rank, int step) {
    return exact_gradient(id, i, rank, step);
  };
  const Json plain = given_config(GetParam(), {sgd()});
  const std::vector<float> expected =
      one_process(plain, kReducedShapes, DType::kFloat32, kSteps, kWorld, exact);
  for (const bool scatter : {true, false}) {
    for (const bool prescale : {false, true}) {
      for (const double factor : {1.0, 2.0, 3.0}) {
        const Json config =
            patched(plain, {{{"prescale_gradients", prescale},
                             {"gradient_predivide_factor", factor},
                             {"zero_optimization", {{"reduce_scatter", scatter}}}}});
        EXPECT_TRUE(same_bits(run(config, kWorld, kSteps), expected))
            << scatter << prescale << factor;
      }
    }
  }
  if (GetParam() == 3) return;  // sums are refused there, as in DeepSpeed
  const Json sums = patched(plain, {{{"gradient_allreduce_op", "sum"}}});
  EXPECT_TRUE(same_bits(run(sums, kWorld, kSteps),
                        one_process(plain, kReducedShapes, DType::kFloat32, kSteps, kWorld,
                                    [&](int64_t id, int64_t i, int rank, int step) {
                                      return kWorld * exact(id, i, rank, step);
                                    })));
}

// Sums of gradients that were divided by the world are means: AdamW and Muon, five steps. At stage
// 3 sums are refused, as in DeepSpeed.
TEST_P(Reduction, SumsOfSharesAreMeans) {
  if (GetParam() == 3) {
    const Json sum = given_config(3, {{{"gradient_allreduce_op", "sum"}}});
    const std::string text = error_of(
        Code::kConfig, [&] { Engine(dump_json(sum), given_model(kReducedShapes), nullptr); });
    EXPECT_THAT(text, ::testing::HasSubstr("gradient_allreduce_op"));
    return;
  }
  for (const char* const optimizer : {"AdamW", "Muon"}) {
    const Json mean = given_config(GetParam(), {optimizer_config(optimizer)});
    const Json sum = patched(mean, {{{"gradient_allreduce_op", "sum"}}});
    std::vector<float> trained[2];
    for (const int which : {0, 1}) {
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(which == 0 ? mean : sum), given_model(kReducedShapes), comm);
        for (int step = 0; step < 5; ++step) {
          for (int64_t id = 0; id < static_cast<int64_t>(kReducedShapes.size()); ++id) {
            give(engine, id, [&](int64_t i) {
              return exact_gradient(id, i, comm->rank(), step) / (which == 0 ? 1.0f : 2.0f);
            });
          }
          EXPECT_TRUE(engine.step().applied);
        }
        const std::vector<float> mine = values(engine);
        if (comm->rank() == 0) trained[which] = mine;
      });
    }
    EXPECT_TRUE(same_bits(trained[0], trained[1])) << optimizer;
  }
}

class Buckets : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Everywhere, Buckets,
                         Combine(Values(0, 1, 2, 3), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) {
                           return str_cat("Stage", std::get<0>(one.param), "_",
                                          std::get<1>(one.param));
                         });

// Buckets of every size, below the smallest parameter too, with and without overlap, for gradients
// that are reduced once or three times per step: the same bits.
TEST_P(Buckets, OfEverySizeGiveTheSameBits) {
  constexpr int kWorld = 2, kSteps = 2, kMicro = 3;
  const auto [stage, precision] = GetParam();
  const DType type = type_of(precision);
  for (const double clipping : {0.0, 0.5}) {
    const Json plain = given_config(
        stage, {sgd(), precision_config(precision), {{"gradient_clipping", clipping}}});
    // Own gradients of micro batches are summed.
    const std::vector<float> expected = one_process(
        plain, kReducedShapes, type, kSteps, kWorld, [](int64_t id, int64_t i, int rank, int step) {
          float sum = 0;
          for (int64_t k = 0; k < kMicro; ++k) {
            sum += exact_gradient(id, i, rank, step * kMicro + k);
          }
          return sum;
        });
    for (const int64_t bucket : {1, 20, 60, 1'000'000}) {
      for (const bool overlap : {false, true}) {
        const Json config = patched(plain, {{{"gradient_accumulation_steps", kMicro},
                                             {"zero_optimization",
                                              {{"reduce_bucket_size", bucket},
                                               {"overlap_comm", overlap},
                                               {"contiguous_gradients", overlap}}}}});
        EXPECT_TRUE(same_bits(run(config, kWorld, kSteps, type), expected))
            << "bucket " << bucket << ", overlap " << overlap << ", clipping " << clipping;
      }
    }
  }
}

// The same for a model that computes its own, in buckets of a single element.
TEST_P(Buckets, OfOneElementTrainABuiltInModel) {
  const auto [stage, precision] = GetParam();
  const Json more = patched({{"gradient_accumulation_steps", 2}}, {precision_config(precision)});
  const Trained plain = train({2, zero_config(0, Json::object(), more), 2});
  const Json zero = {{"reduce_bucket_size", 1},
                     {"stage3_prefetch_bucket_size", 2000},
                     {"stage3_param_persistence_threshold", 0}};
  const Trained other = train({2, zero_config(stage, zero, more), 2});
  EXPECT_TRUE(same_bits(other.weights, plain.weights));
  EXPECT_EQ(other.norms, plain.norms);
  EXPECT_EQ(other.losses, plain.losses);
}

// Which parameters have a gradient changes from step to step and, below stage 3, from rank to rank.
TEST_P(Buckets, GradientsMayBeUnbalanced) {
  constexpr int kWorld = 2, kSteps = 6;
  const auto [stage, precision] = GetParam();
  const DType type = type_of(precision);
  const auto has = [stage = stage](int64_t id, int64_t rank, int64_t step) {
    return (id + step + (stage < 3 ? rank : 0)) % 3 != 0;
  };
  const Json config = given_config(stage, {optimizer_config("AdamW"),
                                           precision_config(precision),
                                           {{"zero_optimization", {{"reduce_bucket_size", 50}}}}});
  const std::vector<float> expected = one_process(
      config, kReducedShapes, type, kSteps, kWorld, [&](int64_t id, int64_t i, int rank, int step) {
        return has(id, rank, step) ? exact_gradient(id, i, rank, step) : 0.0f;
      });
  run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config), given_model(kReducedShapes, type), comm);
    for (int step = 0; step < kSteps; ++step) {
      give_exact(engine, comm->rank(), step,
                 [&](int64_t id) { return has(id, comm->rank(), step); });
      EXPECT_TRUE(engine.step().applied);
    }
    EXPECT_TRUE(same_bits(values(engine), expected));
  });
}

// Keys that choose between things of which there is one here are accepted and change no bit.
TEST_P(Reduction, KeysWithoutEffectChangeNoBit) {
  const Json keys[] = {{{"contiguous_gradients", false}},
                       {{"allgather_partitions", false}},
                       {{"use_multi_rank_bucket_allreduce", false}},
                       {{"round_robin_gradients", true}},
                       {{"sub_group_size", 4}},
                       {{"stage3_use_all_reduce_for_fetch_params", true}},
                       {{"stage3_module_granularity_threshold", 500}},
                       {{"memory_efficient_linear", false}},
                       {{"allgather_bucket_size", 1000}}};
  const std::vector<float> expected =
      run(given_config(GetParam(), {optimizer_config("AdamW")}), 3, 2);
  for (const Json& key : keys) {
    const Json config =
        given_config(GetParam(), {optimizer_config("AdamW"), {{"zero_optimization", key}}});
    EXPECT_TRUE(same_bits(run(config, 3, 2), expected)) << dump_json(key);
  }
}

// One process sends nothing at all: no collective of its group is called in training, evaluation
// or reading.
TEST_P(Reduction, OneRankCallsNoCollective) {
  const Json config = zero_config(GetParam(), Json::object(), {{"gradient_accumulation_steps", 2}});
  run_ranks(1, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine({1, config}, comm);
    engine->train_batch();
    engine->train_batch();
    engine->evaluate(*periodic_data(), 1);
    engine->backward(engine->forward(token_batch(0, 0)));
    engine->gradients().get("wte.weight");
    engine->discard_gradients();
    values(*engine);
    for (const Traffic& traffic : comm->total_traffic()) {
      EXPECT_EQ(traffic.within_node + traffic.across_nodes, 0);
    }
    const TrafficTable table = comm->total_traffic();
    for (size_t kind = 0; kind < table.size(); ++kind) {
      EXPECT_EQ(table[kind].calls, 0) << collective_name(static_cast<Collective>(kind));
    }
  });
}

// An engine without a group, in a process that a launcher started as one of several, would be one
// of as many trainings that know nothing of each other: that is logged.
TEST(Alone, AJobOfSeveralProcessesIsNoticed) {
  const auto warnings = [] {
    std::string text;
    log_set_sink([](void* self, int32_t, const char*,
                    const char* line) { *static_cast<std::string*>(self) += line; },
                 &text, nullptr);
    Engine(dump_json(given_config(1)), given_model(kReducedShapes), nullptr);
    log_set_sink(nullptr, nullptr, nullptr);
    return text;
  };
  EXPECT_EQ(warnings(), "");
  const std::map<std::string, std::string> torchrun = {{"RANK", "2"},
                                                       {"WORLD_SIZE", "4"},
                                                       {"LOCAL_RANK", "2"},
                                                       {"MASTER_ADDR", "localhost"},
                                                       {"MASTER_PORT", "29500"}};
  for (const auto& [name, value] : torchrun) ::setenv(name.c_str(), value.c_str(), 1);
  const std::string told = warnings();
  for (const auto& [name, value] : torchrun) ::unsetenv(name.c_str());
  EXPECT_THAT(told, ::testing::HasSubstr("rank 2 of 4"));
  EXPECT_THAT(told, ::testing::HasSubstr("ds_comm_create"));
  // A group of one that was asked for is one.
  run_ranks(1, [&](const std::shared_ptr<Communicator>& comm) {
    Engine(dump_json(given_config(1)), given_model(kReducedShapes), comm);
  });
}

}  // namespace
}  // namespace ds::properties
