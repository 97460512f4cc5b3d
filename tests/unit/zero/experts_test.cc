// Mixture of experts in whole training: stages, ranks, micro batches, checkpoints and adapters
// change nothing of what is computed, and steps tell who went where.
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "engine/combinations.h"
#include "engine/plan.h"
#include "expert_models.h"
#include "models/adapters.h"
#include "models/lora.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

class Experts : public ::testing::TestWithParam<ExpertModel> {
 protected:
  Job job(int world, int stage, const Json& more = Json::object()) const {
    Job job;
    job.world = world;
    job.model = GetParam().model;
    job.config = zero_config(stage, {{"reduce_bucket_size", 3000}},
                             with({{"gradient_accumulation_steps", 2}}, more));
    return job;
  }
};

TEST_P(Experts, EveryStageHasTheBitsOfStageZero) {
  for (const Json& precision : {Json::object(), Json{{"bf16", {{"enabled", true}}}}}) {
    const Trained plain = train(job(2, 0, precision));
    EXPECT_NE(plain.losses[2], plain.losses[0]);
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", ", dump_json(precision)));
      const Trained other = train(job(2, stage, precision));
      EXPECT_TRUE(same_bits(other.weights, plain.weights));
      EXPECT_EQ(other.losses, plain.losses);
      EXPECT_EQ(other.norms, plain.norms);
    }
  }
}

TEST_P(Experts, RecomputationAndThreadsChangeNoBit) {
  const Trained plain = train(job(1, 0));
  const Trained other =
      train(job(1, 0,
                {{"threads", 3},
                 {"activation_checkpointing", {{"enabled", true}, {"number_checkpoints", 2}}}}));
  EXPECT_TRUE(same_bits(other.weights, plain.weights));
  EXPECT_EQ(other.losses, plain.losses);
}

TEST_P(Experts, EvenUnusedOnesHaveGradients) {
  const Trained plain = train(job(2, 2));
  const Trained strict =
      train(job(2, 2, {{"zero_optimization", {{"ignore_unused_parameters", false}}}}));
  EXPECT_TRUE(same_bits(strict.weights, plain.weights));
}

TEST_P(Experts, CheckpointsGoFromStageThreeOfTwoRanksToOne) {
  const Folder folder;
  Job of_two = job(2, 3);
  std::vector<float> saved;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(of_two, comm);
    for (int i = 0; i < 2; ++i) engine->train_batch();
    engine->save(folder.path(), "two");
    engine->wait_for_save();
    const std::vector<float> mine = all_weights(*engine);
    if (comm->rank() == 0) saved = mine;
  });
  Job alone = job(1, 0, {{"train_micro_batch_size_per_gpu", 4}});
  auto engine = std::make_unique<Engine>(dump_json(alone.config), make_rank_model(alone, 99),
                                         nullptr, ReadOptions{});
  engine->set_dataset(periodic_data());
  engine->load(folder.path(), "two");
  EXPECT_TRUE(same_bits(all_weights(*engine), saved));
  EXPECT_EQ(engine->progress().steps, 2);
  EXPECT_TRUE(std::isfinite(engine->train_batch().loss));
}

TEST_P(Experts, AdaptersTrainBesideThem) {
  Job adapted = job(2, 2);
  adapted.prepare = [](models::Model& model) {
    models::LoraOptions lora;
    lora.r = 2;
    lora.target_modules = {"all-linear"};
    models::add_lora(model, lora);
  };
  const Trained plain = train(adapted);
  adapted.config["zero_optimization"]["stage"] = 3;
  EXPECT_TRUE(same_bits(train(adapted).weights, plain.weights));
  // Each expert has adapters of its own.
  const auto model = make_rank_model(adapted);
  int64_t experts = 0;
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const nn::Parameter& p = model->parameters()[id];
    if (p.name.find("lora_B") != std::string::npos && p.expert >= 0) ++experts;
  }
  EXPECT_GT(experts, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Experts, ::testing::ValuesIn(expert_models({3, 6})),
                         [](const auto& test) { return std::string(test.param.name); });

// Random choices follow the sample, however ranks and micro batches share a batch. Nothing is
// dropped and no loss balances here: room and means are of a micro batch.
TEST(ExpertLayouts, ChoicesFollowTheSample) {
  const Json model = gpt_moe({{"moe_drop_tokens", false},
                              {"moe_loss_coeff", 0},
                              {"moe_top_k", 2},
                              {"moe_noisy_gate_policy", "Jitter"}});
  const auto run = [&](int world, int micro, int accumulation, int stage) {
    Job job;
    job.world = world;
    job.steps = 4;
    job.model = model;
    job.config = with(base_config(), {{"train_micro_batch_size_per_gpu", micro},
                                      {"gradient_accumulation_steps", accumulation},
                                      {"seed", 11},
                                      {"scheduler", nullptr},
                                      {"zero_allow_untested_optimizer", true},
                                      {"zero_optimization", {{"stage", stage}}}});
    job.config["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0.1}}}};
    return train(job);
  };
  const Trained whole = run(1, 8, 1, 0);
  const int layouts[][4] = {{2, 4, 1, 0}, {4, 2, 1, 3}, {1, 2, 4, 0}, {2, 1, 4, 2}};
  for (const auto& [world, micro, accumulation, stage] : layouts) {
    SCOPED_TRACE(str_cat(world, " x ", micro, " x ", accumulation));
    const Trained other = run(world, micro, accumulation, stage);
    for (size_t i = 0; i < whole.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], whole.losses[i], 3e-6) << "step " << i;
    }
    EXPECT_LT(largest_difference(other.weights, whole.weights), 3e-6);
  }
}

TEST(ExpertLoads, AStepTellsWhoWentWhereAndWhatItCost) {
  const auto engine = make_engine(base_config(), gpt_moe({{"moe_top_k", 2},
                                                          {"moe_min_capacity", 1},
                                                          {"moe_train_capacity_factor", 0.5},
                                                          {"moe_z_loss_coeff", 0.01}}));
  EXPECT_TRUE(engine->experts().is_null());
  const StepReport report = engine->train_batch();
  const Json& experts = engine->experts();
  EXPECT_EQ(experts["step"], 1);
  ASSERT_EQ(experts["layers"].size(), 1u);
  const Json& layer = experts["layers"][0];
  EXPECT_EQ(layer["layer"], 1);
  EXPECT_EQ(layer["tokens"], 2 * 4 * 16);
  EXPECT_EQ(total(layer["chosen"]), 2 * 2 * 4 * 16);
  // Room of each expert: half of its share, of two micro batches of 64 tokens.
  EXPECT_EQ(total(layer["chosen"]) - total(layer["dropped"]), 2 * 4 * 16);
  EXPECT_GT(experts["balance_loss"], 0.05);  // 0.1 where all are alike
  EXPECT_GT(experts["z_loss"], 0);
  // The same model without these losses begins with the loss of the texts alone.
  const auto plain = make_engine(base_config(), gpt_moe({{"moe_top_k", 2},
                                                         {"moe_min_capacity", 1},
                                                         {"moe_train_capacity_factor", 0.5},
                                                         {"moe_loss_coeff", 0}}));
  const double added = experts["balance_loss"].get<double>() + experts["z_loss"].get<double>();
  EXPECT_NEAR(report.loss - plain->train_batch().loss, added, 1e-5);
  EXPECT_EQ(plain->experts()["balance_loss"], 0);
  EXPECT_TRUE(make_engine(base_config())->experts().is_null());
}

// The largest share of an expert in the first and the last of forty steps, where a router sends
// nearly all tokens to its first expert to begin with.
std::pair<double, double> largest_shares(const Json& gates, const Json& config) {
  const auto model = models::Model::create(gpt_moe(with({{"moe_drop_tokens", false}}, gates)), 3);
  Tensor shift = model->get("h.1.ln_2.bias"), router = model->get("h.1.mlp.gate.weight");
  std::fill_n(shift.data<float>(), 32, 0.5f);
  std::fill_n(router.data<float>(), 32, 0.2f);
  model->set("h.1.ln_2.bias", shift);
  model->set("h.1.mlp.gate.weight", router);
  Engine engine(dump_json(config), model, nullptr);
  engine.set_dataset(periodic_data());
  const auto step = [&] {
    engine.train_batch();
    const Json& chosen = engine.experts()["layers"][0]["chosen"];
    int64_t most = 0;
    for (const Json& count : chosen) most = std::max(most, count.get<int64_t>());
    return static_cast<double>(most) / static_cast<double>(total(chosen));
  };
  const double first = step();
  double last = first;
  for (int i = 1; i < 40; ++i) last = step();
  return {first, last};
}

// With the balancing loss the router learns to spread them.
TEST(ExpertLoads, BalancingEvensLoadsOut) {
  Json config = base_config();
  config["scheduler"] = nullptr;
  const auto balanced = largest_shares({{"moe_loss_coeff", 1.0}}, config),
             free = largest_shares({{"moe_loss_coeff", 0}}, config);
  EXPECT_GT(balanced.first, 0.9);
  EXPECT_LT(balanced.second, 0.5);
  EXPECT_GT(free.first, 0.9);
  EXPECT_GT(free.second, 0.7);
}

// The bias of a router that no gradient moves: after each step by its rate towards equal loads of
// all ranks and micro batches.
TEST(RouterBias, FollowsTheLoadsOfAllRanks) {
  for (const int world : {1, 2}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool bf16 : {false, true}) {
        if (world == 1 && stage > 0) continue;
        SCOPED_TRACE(str_cat(world, " ranks, stage ", stage, bf16 ? ", bf16" : ""));
        Job job;
        job.world = world;
        job.model = deepseek("deepseek_v3", {{"moe_router_bias_update_rate", 0.03}});
        job.config = zero_config(stage, {{"reduce_bucket_size", 3000}},
                                 {{"gradient_accumulation_steps", 2}});
        if (bf16) job.config["bf16"] = {{"enabled", true}};
        std::vector<float> bias(12);
        for (int steps = 0; steps < 3; ++steps) {
          std::vector<Json> chosen(static_cast<size_t>(world));
          std::vector<std::vector<float>> after(static_cast<size_t>(world));
          run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
            const auto rank = static_cast<size_t>(comm->rank());
            auto engine = make_rank_engine(job, comm);
            for (int i = 0; i <= steps; ++i) engine->train_batch();
            chosen[rank] = engine->experts()["layers"][0]["chosen"];
            const Tensor value = engine->model()->get("layers.1.mlp.gate.e_score_correction_bias");
            after[rank].assign(value.data<float>(), value.data<float>() + 12);
          });
          std::vector<int64_t> sum(12);
          int64_t all = 0;
          for (const Json& own : chosen) {
            for (size_t e = 0; e < 12; ++e) sum[e] += own[e].get<int64_t>();
          }
          for (const int64_t load : sum) all += load;
          for (size_t e = 0; e < 12; ++e) {
            const int64_t scaled = 12 * sum[e];
            bias[e] = static_cast<float>(bias[e] + 0.03 * (scaled < all   ? 1
                                                           : scaled > all ? -1
                                                                          : 0));
          }
          for (const std::vector<float>& own : after) EXPECT_EQ(own, bias) << "step " << steps;
        }
        EXPECT_NE(bias, std::vector<float>(12));
      }
    }
  }
}

// With the bias alone it learns to spread them, too.
TEST(RouterBias, EvensLoadsOut) {
  Json config = base_config();
  config["scheduler"] = nullptr;
  config["optimizer"]["params"]["lr"] = 1e-4;
  const auto last_share = [&](double rate) {
    return largest_shares({{"moe_loss_coeff", 0},
                           {"moe_router_score_function", "sigmoid"},
                           {"moe_router_enable_expert_bias", true},
                           {"moe_router_bias_update_rate", rate}},
                          config)
        .second;
  };
  EXPECT_LT(last_share(0.03), 0.5);
  EXPECT_GT(last_share(0), 0.7);
}

// Adapters beside frozen routers leave the bias alone, and nobody makes it trainable.
TEST(RouterBias, StaysWhereTheRouterIsFrozen) {
  const auto model =
      models::Model::create(deepseek("deepseek_v3", {{"moe_router_bias_update_rate", 0.03}}), 3);
  models::LoraOptions lora;
  lora.r = 2;
  lora.target_modules = {"all-linear"};
  models::add_lora(*model, lora);
  Engine engine(dump_json(base_config()), model, nullptr);
  engine.set_dataset(periodic_data());
  engine.train_batch();
  const Tensor bias = model->get("layers.1.mlp.gate.e_score_correction_bias");
  for (int64_t e = 0; e < 12; ++e) EXPECT_EQ(bias.data<float>()[e], 0);
  const auto other = models::Model::create(deepseek("deepseek_v3", Json::object()), 3);
  models::set_trainable(*other, {"*"}, true);
  const nn::ParameterSet& parameters = other->parameters();
  EXPECT_FALSE(parameters[parameters.find("layers.1.mlp.gate.e_score_correction_bias")].trainable);
  EXPECT_THAT(error_of(Code::kUnsupported,
                       [&] {
                         Json config = zero_config(1);
                         config["bf16"] = {{"enabled", true},
                                           {"bf16_master_weights_and_grads", true},
                                           {"bf16_optimizer_states", true}};
                         make_engine(config, deepseek("deepseek_v3", Json::object()));
                       }),
              HasSubstr("routers with a bias"));
}

TEST(ExpertPlan, TellsActiveParameters) {
  const Json model = mixtral();
  PlanOptions options;
  options.world = 2;
  for (const int stage : {0, 3}) {
    const Json out = plan_training(model, dump_json(zero_config(stage)), options);
    const int64_t of_experts = 2 * 12 * 3 * 16 * 12;
    EXPECT_EQ(out["model"]["experts"], 12);
    EXPECT_EQ(out["model"]["experts_per_token"], 2);
    EXPECT_EQ(out["model"]["parameters"].get<int64_t>() -
                  out["model"]["active_parameters"].get<int64_t>(),
              of_experts / 12 * 10);
  }
}

// The published sizes of Mixtral 8x7B and of Qwen3-30B-A3B; what a document leaves out is the
// family's.
TEST(ExpertPlan, PublishedModels) {
  struct Published {
    Json model;
    double all, active;
  };
  for (const Published& p :
       {Published{{{"model_type", "mixtral"}}, 46.7e9, 12.9e9},
        Published{{{"model_type", "qwen3_moe"}, {"num_hidden_layers", 48}, {"head_dim", 128}},
                  30.5e9,
                  3.3e9},
        // DeepSeek-V3, whose layer for further tokens has 14 B more, and V2.
        Published{{{"model_type", "deepseek_v3"}}, 671.0e9, 37.5e9},
        Published{{{"model_type", "deepseek_v2"},
                   {"hidden_size", 5120},
                   {"intermediate_size", 12288},
                   {"num_hidden_layers", 60},
                   {"num_attention_heads", 128},
                   {"first_k_dense_replace", 1},
                   {"n_routed_experts", 160},
                   {"moe_intermediate_size", 1536},
                   {"num_experts_per_tok", 6}},
                  235.7e9,
                  21.4e9}}) {
    const auto architecture = models::build_architecture(p.model);
    const nn::ParameterSet& parameters = architecture->parameters();
    EXPECT_NEAR(static_cast<double>(parameters.elements()), p.all, 0.05e9);
    EXPECT_NEAR(
        static_cast<double>(parameters.active_elements(architecture->info().experts_per_token)),
        p.active, 0.06e9);
  }
}

TEST(ExpertConfig, RefusesByName) {
  const auto why = [](const Json& change) {
    return error_of(Code::kConfig, [&] { models::build_architecture(gpt_moe(change)); });
  };
  EXPECT_THAT(why({{"num_experts", nullptr}}), HasSubstr("num_experts is missing"));
  EXPECT_THAT(why({{"num_experts", {4, 4}}}), HasSubstr("2 entries for 1 layers"));
  EXPECT_THAT(why({{"num_experts", 60000}, {"n_layer", 10}}), HasSubstr("300000 experts"));
  EXPECT_THAT(why({{"moe_top_k", 5}}), HasSubstr("from 1 to 4"));
  EXPECT_THAT(why({{"moe_noisy_gate_policy", "jitter"}}), HasSubstr("RSample"));
  EXPECT_THAT(why({{"mlp_type", "dense"}}), HasSubstr("residual"));
  EXPECT_THAT(why({{"moe_drop_policy", "first"}}), HasSubstr("probs"));
  EXPECT_THAT(why({{"moe_router_score_function", "tanh"}}), HasSubstr("sigmoid"));
  EXPECT_THAT(why({{"moe_router_enable_expert_bias", true}}), HasSubstr("score_function sigmoid"));
  EXPECT_THAT(why({{"moe_router_num_groups", 3}}), HasSubstr("3 groups"));
}

}  // namespace
}  // namespace ds::zero_test
