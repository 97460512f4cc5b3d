// ZeRO changes where state lies, never what is computed.
#include <bit>

#include "attached_state.h"
#include "models/adapters.h"
#include "nn/fp8.h"
#include "zero_world.h"

namespace ds::zero_test {
namespace {

struct Variant {
  int world;
  int accumulation;
  const char* precision = "fp32";
};

class EveryStage : public ::testing::TestWithParam<Variant> {};

TEST_P(EveryStage, HasTheBitsOfStageZero) {
  const auto [world, accumulation, precision] = GetParam();
  Json more = {{"gradient_accumulation_steps", accumulation}};
  if (precision != std::string("fp32")) more[precision] = {{"enabled", true}};
  if (precision == std::string("fp16")) more["fp16"]["initial_scale_power"] = 8;
  const Trained plain = train({world, zero_config(0, Json::object(), more)});
  ASSERT_EQ(plain.losses.size(), 3u);
  EXPECT_NE(plain.losses[2], plain.losses[0]);
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool overlap : {false, true}) {
      for (const int64_t bucket : {3000, 1'000'000}) {
        SCOPED_TRACE(str_cat("stage ", stage, ", overlap ", overlap, ", bucket ", bucket));
        const Json zero = {{"overlap_comm", overlap},
                           {"reduce_bucket_size", bucket},
                           {"stage3_param_persistence_threshold", 100},
                           {"stage3_max_live_parameters", stage == 3 ? 9000 : 1'000'000'000},
                           {"stage3_max_reuse_distance", bucket},
                           {"stage3_prefetch_bucket_size", 4000}};
        const Trained other = train({world, zero_config(stage, zero, more)});
        EXPECT_TRUE(same_bits(other.weights, plain.weights));
        EXPECT_EQ(other.losses, plain.losses);
        EXPECT_EQ(other.norms, plain.norms);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, EveryStage,
                         ::testing::Values(Variant{2, 1}, Variant{3, 4}, Variant{4, 1},
                                           Variant{2, 2, "fp16"}, Variant{3, 4, "bf16"},
                                           Variant{3, 2, "fp16"}, Variant{4, 1, "bf16"},
                                           Variant{4, 2, "fp16"}),
                         [](const auto& variant) {
                           const std::string precision = variant.param.precision;
                           return str_cat("World", variant.param.world, "Accumulation",
                                          variant.param.accumulation,
                                          precision == "fp32" ? "" : "_" + precision);
                         });

// Sums are means times the ranks; without reduce-scatter every rank reduces everything.
TEST(Stages, WaysToReduceAgree) {
  for (const int stage : {0, 1, 2}) {
    const Json zero = {{"reduce_bucket_size", 3000}};
    const Trained mean = train({4, zero_config(stage, zero), 1});
    const Trained sum = train({4, zero_config(stage, zero, {{"gradient_allreduce_op", "sum"}}), 1});
    EXPECT_NEAR(sum.norms[0], 4 * mean.norms[0], 1e-6 * sum.norms[0]);
    Json all = zero;
    all["reduce_scatter"] = false;
    EXPECT_TRUE(same_bits(train({4, zero_config(stage, all), 1}).weights, mean.weights));
  }
}

// The batch of a step is the same, however many ranks share it: up to the order of sums.
TEST(Stages, WorldsAgreeWithOneProcess) {
  for (const char* precision : {"fp32", "bf16"}) {
    Json more = {{"gradient_accumulation_steps", 4}, {"train_micro_batch_size_per_gpu", 1}};
    if (precision == std::string("bf16")) {
      more["bf16"] = {{"enabled", true}};
      more["communication_data_type"] = "bf16";
    }
    Json alone = more;
    alone["train_micro_batch_size_per_gpu"] = 4;
    alone["gradient_accumulation_steps"] = 4;
    const Trained single = train({1, zero_config(0, Json::object(), alone), 4});
    for (const int stage : {0, 2, 3}) {
      const Trained four = train({4, zero_config(stage, Json::object(), more), 4});
      SCOPED_TRACE(str_cat(precision, ", stage ", stage));
      ASSERT_EQ(single.losses.size(), four.losses.size());
      // fp32: sums in another order. bf16: gradients are rounded to 8 bits before they are reduced,
      // and Adam's first steps turn a small gradient's sign into a whole step of the rate.
      const double bound = more.contains("bf16") ? 2e-2 : 1e-5;
      for (size_t i = 0; i < single.losses.size(); ++i) {
        EXPECT_NEAR(four.losses[i], single.losses[i], bound * single.losses[i]) << i;
      }
      if (!more.contains("bf16")) {
        EXPECT_LT(largest_difference(four.weights, single.weights), 2e-3);
      }
    }
  }
}

// Rank 0's, which travel in pieces of 4 Mi elements where ranks would draw others.
TEST(Stages, RanksBeginWithTheSameWeightsHoweverManyThereAre) {
  Job job{2, zero_config(1)};
  job.model["n_positions"] = 140'001;  // its matrix is cut, and comes after a small one
  Engine alone(dump_json(zero_config(0)), make_rank_model(job), nullptr);
  const std::vector<float> expected = all_weights(alone);
  ASSERT_GT(expected.size(), size_t{4} << 20);
  run_ranks(job.world, [&](const std::shared_ptr<Communicator>& comm) {
    const uint64_t seed = 3 + static_cast<uint64_t>(comm->rank());
    Engine engine(dump_json(job.config), make_rank_model(job, seed), comm);
    EXPECT_TRUE(same_bits(all_weights(engine), expected)) << "rank " << comm->rank();
  });
}

// Of values in the middle between two weights the halves must go together.
TEST(Stages, SplitMastersTakeValuesBetweenTwoWeights) {
  const Json split = {{"bf16", {{"enabled", true}, {"split_master", true}}}};
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world : {1, 2}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", ranks: ", world));
      run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine =
            make_rank_engine({world, zero_config(stage, Json::object(), split)}, comm);
        const std::string name = "h.0.mlp.c_fc.bias";
        const Tensor value = engine->model()->get(name);
        for (int64_t i = 0; i < value.elements(); ++i) {
          const auto weight = static_cast<uint32_t>(0x3f80 + i % 4);
          value.data<float>()[i] = std::bit_cast<float>((weight << 16) + 0x8000u);
        }
        engine->model()->set(name, value);
        EXPECT_TRUE(same_bits(flat(engine->model()->get(name)), flat(value)));
      });
    }
  }
}

// Every stage has the same largest numbers, of all ranks, and stage 3 casts weights again to the
// same codes.
TEST(Stages, Fp8AgreesBetweenStages) {
  const Json more = {{"bf16", {{"enabled", true}}},
                     {"fp8", {{"enabled", true}}},
                     {"gradient_accumulation_steps", 2}};
  const Trained plain = train({2, zero_config(0, {{"reduce_bucket_size", 5000}}, more), 5});
  const Trained bf16 =
      train({2, zero_config(0, Json::object(), with(more, {{"fp8", {{"enabled", false}}}})), 5});
  EXPECT_NE(plain.losses, bf16.losses);
  const Json zero = {{"reduce_bucket_size", 5000}, {"stage3_param_persistence_threshold", 20}};
  for (const int stage : {1, 2, 3}) {
    Json all = zero;
    if (stage < 3) all.erase("stage3_param_persistence_threshold");
    const Trained other = train({2, zero_config(stage, all, more), 5});
    EXPECT_TRUE(same_bits(other.weights, plain.weights));
    EXPECT_EQ(other.losses, plain.losses);
  }
}

// Also within a step, whose largest numbers the ranks have seen each for itself.
TEST(Stages, Fp8ResumesOnSeveralRanks) {
  const Json config = zero_config(1, Json::object(),
                                  {{"bf16", {{"enabled", true}}},
                                   {"fp8", {{"enabled", true}}},
                                   {"gradient_accumulation_steps", 2}});
  const Folder folder;
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const Job job{2, config};
    const auto engine = make_rank_engine(job, comm);
    engine->train_batch();
    const Tensor ids = ids_tensor({1 + comm->rank(), 2, 3, 4, 5, 6, 7, 8}, 2);
    const auto half_a_step = [&](Engine& one) {
      one.backward(one.forward({ids, ids, {}, {}, {}}));
      one.step();
    };
    half_a_step(*engine);
    engine->save(folder.path(), "half");
    const auto resumed = make_rank_engine(job, comm);
    resumed->load(folder.path(), "half");
    std::vector<float> scaling[2];
    double loss[2];
    for (const int which : {0, 1}) {
      Engine& one = which == 0 ? *engine : *resumed;
      half_a_step(one);
      loss[which] = one.train_batch().loss;
      const nn::Fp8Linears& fp8 = *train_state(*one.model()).weights().fp8();
      for (const nn::ParamId id : fp8.weights()) {
        const std::vector<float> values = flat(fp8.saved(id, one.model()->host()));
        scaling[which].insert(scaling[which].end(), values.begin(), values.end());
      }
    }
    EXPECT_EQ(loss[1], loss[0]);
    EXPECT_TRUE(same_bits(scaling[1], scaling[0]));
    EXPECT_TRUE(same_bits(all_weights(*resumed), all_weights(*engine)));
  });
}

TEST(Stages, PrecisionsAndOptimizersAgreeBetweenStages) {
  const Json variants[] = {
      {{"bf16", {{"enabled", true}}}},
      {{"bf16", {{"enabled", true}, {"split_master", true}}}},
      {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}},
      {{"optimizer", {{"type", "Lion"}, {"params", {{"lr", 1e-3}}}}},
       {"zero_allow_untested_optimizer", true}},
      {{"activation_checkpointing", {{"enabled", true}}}},
      {{"optimizer", {{"type", "Lamb"}, {"params", {{"lr", 1e-2}, {"weight_decay", 0.01}}}}},
       {"zero_allow_untested_optimizer", true}},
      {{"optimizer", {{"type", "Muon"}, {"params", {{"lr", 2e-2}}}}},
       {"zero_optimization", {{"reduce_scatter", false}}}},
      {{"optimizer", {{"type", "AdamW"}, {"params", {{"amsgrad", true}}}}}},
      {{"optimizer", {{"type", "NAdam"}, {"params", {{"weight_decay", 0.1}}}}},
       {"zero_allow_untested_optimizer", true}},
      {{"optimizer",
        {{"type", "RMSprop"}, {"params", {{"lr", 1e-3}, {"momentum", 0.9}, {"centered", true}}}}},
       {"zero_allow_untested_optimizer", true}},
      {{"optimizer",
        {{"type", "MuAdamW"},
         {"params",
          {{"weight_decay", 0.1},
           {"base_shapes", {{{"match", {"*c_fc.weight"}}, {"shape", {16, 64}}}}}}}}},
       {"zero_allow_untested_optimizer", true}},
  };
  for (const Json& more : variants) {
    const Trained plain = train({2, zero_config(0, {{"reduce_bucket_size", 5000}}, more), 5});
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(str_cat(dump_json(more), " stage ", stage));
      const Json zero = {{"reduce_bucket_size", 5000}, {"stage3_param_persistence_threshold", 40}};
      const Trained other = train({2, zero_config(stage, zero, more), 5});
      EXPECT_TRUE(same_bits(other.weights, plain.weights));
      EXPECT_EQ(other.norms, plain.norms);
    }
  }
}

// A rank holds its share of what its stage spreads.
TEST(Stages, MemoryIsSharedOut) {
  const Json model = with(model_config(0), {{"n_embd", 64}, {"n_layer", 4}, {"vocab_size", 640}});
  constexpr int kWorld = 4;
  for (const int stage : {0, 1, 2, 3}) {
    Job run{kWorld,
            zero_config(
                stage, {{"reduce_bucket_size", 20000}, {"stage3_param_persistence_threshold", 0}},
                {{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}}),
            1, model};
    run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      engine->train_batch();
      const double p = static_cast<double>(engine->model()->parameters().elements());
      const MemoryAccount& account = engine->model()->device()->account();
      const auto now = [&](MemoryTag tag) { return static_cast<double>(account.now(tag)) / p; };
      // Bytes per parameter; padding of small tensors takes some of it.
      const double share = stage == 0 ? 1 : 1.0 / kWorld;
      EXPECT_NEAR(now(MemoryTag::kOptimizer), 8 * share, 0.05 * 8 * share + 0.1);
      EXPECT_NEAR(now(MemoryTag::kParameters), 4 * share + 2 * (stage == 3 ? share : 1), 0.25);
      EXPECT_NEAR(now(MemoryTag::kGradients), 2 * share, 0.15);
    });
  }
}

struct Special {
  const char* name;
  Json model;
  std::function<void(models::Model&)> prepare;
};

Json llama_config(bool tied) {
  return {{"model_type", "llama"},      {"vocab_size", 61},
          {"hidden_size", 32},          {"intermediate_size", 56},
          {"num_hidden_layers", 2},     {"num_attention_heads", 4},
          {"num_key_value_heads", 2},   {"max_position_embeddings", 32},
          {"tie_word_embeddings", tied}};
}

void adapt(models::Model& model, double dropout) {
  models::LoraOptions lora;
  lora.r = 3;  // parts of no round size
  lora.dropout = dropout;
  lora.target_modules = {"all-linear"};
  lora.seed = 5;
  models::add_lora(model, lora);
}

std::vector<Special> special_parameters() {
  const auto only_attention = [](models::Model& model) {
    models::set_trainable(model, {"*"}, false);
    models::set_trainable(model, {"*attn*"}, true);
  };
  return {
      {"Tied", llama_config(true), [](models::Model&) {}},
      {"Untied", llama_config(false), [](models::Model&) {}},
      // GPT-2 ties its embedding: frozen, and trained with little else.
      {"FrozenBetween", model_config(), only_attention},
      {"TiedFrozen", model_config(),
       [](models::Model& model) {
         models::set_trainable(model, {"wte.weight", "wpe.weight"}, false);
       }},
      {"TiedAlone", model_config(),
       [](models::Model& model) {
         models::set_trainable(model, {"*"}, false);
         models::set_trainable(model, {"wte.weight"}, true);
       }},
      {"Lora", model_config(), [](models::Model& model) { adapt(model, 0.1); }},
      {"LoraAndHead", llama_config(false),
       [](models::Model& model) {
         adapt(model, 0);
         models::set_trainable(model, {"*lm_head*"}, true);
       }},
  };
}

class SpecialParameters : public ::testing::TestWithParam<Special> {};

// Tied parameters are one, frozen ones stay, adapters train: with the bits of stage 0.
TEST_P(SpecialParameters, HaveTheBitsOfStageZero) {
  const Special& special = GetParam();
  const Job before{1, zero_config(0), 0, special.model, special.prepare};
  const std::vector<float> fresh = train(before).weights;
  for (const Json& more : {Json::object(), Json{{"bf16", {{"enabled", true}}}},
                           Json{{"optimizer", {{"type", "Muon"}, {"params", {{"lr", 2e-2}}}}},
                                {"zero_optimization", {{"reduce_scatter", false}}},
                                {"gradient_accumulation_steps", 2}}}) {
    // The first two steps of the schedule have no rate.
    const Job plain{3, zero_config(0, {{"reduce_bucket_size", 2000}}, more), 4, special.model,
                    special.prepare};
    const Trained expected = train(plain);
    const std::shared_ptr<models::Model> made = make_rank_model(plain);
    const nn::ParameterSet& parameters = made->parameters();
    size_t at = 0;
    bool moved = false;
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      const nn::Parameter& p = parameters[id];
      const size_t end = at + static_cast<size_t>(p.shape.elements());
      const bool same = std::equal(fresh.begin() + static_cast<int64_t>(at),
                                   fresh.begin() + static_cast<int64_t>(end),
                                   expected.weights.begin() + static_cast<int64_t>(at));
      EXPECT_TRUE(p.trainable || same) << p.name << " is frozen";
      moved = moved || !same;
      at = end;
    }
    EXPECT_TRUE(moved);
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(str_cat(dump_json(more), " stage ", stage));
      Job run = plain;
      run.config = zero_config(
          stage, {{"reduce_bucket_size", 2000}, {"stage3_param_persistence_threshold", 30}}, more);
      const Trained other = train(run);
      EXPECT_TRUE(same_bits(other.weights, expected.weights));
      EXPECT_EQ(other.losses, expected.losses);
      EXPECT_EQ(other.norms, expected.norms);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SpecialParameters, ::testing::ValuesIn(special_parameters()),
                         [](const auto& special) { return std::string(special.param.name); });

TEST(Stages, OverflowIsSkippedByAll) {
  for (const int stage : {0, 2, 3}) {
    Job run{3,
            zero_config(
                stage, {{"reduce_bucket_size", 3000}},
                {{"fp16", {{"enabled", true}, {"initial_scale_power", 40}, {"hysteresis", 1}}}})};
    run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      const std::vector<float> before = all_weights(*engine);
      const StepReport report = engine->train_batch();
      EXPECT_FALSE(report.applied);
      EXPECT_FALSE(report.first_bad_tensor.empty());
      EXPECT_TRUE(same_bits(all_weights(*engine), before));
    });
  }
}

// What the configuration asks to be logged of collectives, and what it cannot ask for.
TEST(Stages, CollectivesAreLogged) {
  Job run{2, zero_config(2, Json::object(), {{"comms_logger", {{"enabled", true}}}}), 1};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = make_rank_engine(run, comm);
    engine->train_batch();
    const std::string table = engine->comms_log();
    for (const char* name : {"reduce_scatter", "all_gather", "all_reduce"}) {
      EXPECT_NE(table.find(name), std::string::npos) << table;
    }
  });
  run.config["comms_logger"]["prof_ops"] = {"all_reduction"};
  const std::string text = error_of(Code::kConfig, [&] {
    Engine(dump_json(run.config), models::Model::create(run.model, 3), nullptr);
  });
  EXPECT_NE(text.find("all_reduction"), std::string::npos);
}

// Whole fp32 parameters, gradients and moments can be read and set at every stage.
TEST(Stages, StateIsReachable) {
  for (const int stage : {0, 1, 2, 3}) {
    Job run{3,
            zero_config(stage,
                        {{"reduce_bucket_size", 3000}, {"stage3_param_persistence_threshold", 30}},
                        {{"gradient_accumulation_steps", 2}})};
    run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      engine->train_batch();
      const std::string name = "h.1.mlp.c_fc.weight";
      const models::Model::Use use(*engine->model());
      ThreadPool pool(1);
      const OpContext ctx{engine->model()->device(), &pool};
      zero::TrainState& state = train_state(*engine->model());
      const nn::ParamId id = state.parameters().find(name);
      const Shape shape = state.parameters()[id].shape;
      Tensor value = Tensor::empty(ctx.device, DType::kFloat32, shape, MemoryTag::kOther);
      for (int64_t i = 0; i < value.elements(); ++i) {
        value.data<float>()[i] = static_cast<float>(i % 97) / 64;
      }
      state.masters().write(ctx, id, value);
      EXPECT_TRUE(same_bits(flat(state.masters().read(ctx, id)), flat(value)));
    });
    run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(run, comm);
      engine->train_batch();
      const std::string name = "h.1.mlp.c_fc.weight";
      EXPECT_EQ(engine->values().optimizer_states(name),
                (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
      Tensor value = engine->values().optimizer_state(name, "exp_avg");
      for (int64_t i = 0; i < value.elements(); ++i) value.data<float>()[i] += 1;
      engine->values().set_optimizer_state(name, "exp_avg", value);
      EXPECT_TRUE(same_bits(flat(engine->values().optimizer_state(name, "exp_avg")), flat(value)));
    });
  }
}

}  // namespace
}  // namespace ds::zero_test
