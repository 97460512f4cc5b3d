// The plan against the published table of ZeRO (Rajbhandari et al., arXiv:1910.02054, table 1) and
// against the memory account of an engine.
#include "engine/plan.h"

#include "engine_world.h"

namespace ds::engine_test {
namespace {

Json plan(const Json& model, const Json& config, int world, int ranks_per_node = 0) {
  PlanOptions options;
  options.world = world;
  options.ranks_per_node = ranks_per_node;
  return plan_training(model, dump_json(config), options);
}

Json paper_config(int stage) {
  return {{"train_micro_batch_size_per_gpu", 1},
          {"bf16", {{"enabled", true}}},
          {"data_types", {{"grad_accum_dtype", "bf16"}}},
          {"zero_optimization", {{"stage", stage}}},
          {"optimizer", {{"type", "Adam"}, {"params", {{"lr", 1e-4}}}}}};
}

// Gigabytes of model states per device. Column "Pos" of the table keeps gradients whole, which no
// stage here does: they are spread from stage 1 on.
TEST(Plan, PaperTable) {
  const int degrees[] = {1, 4, 16, 64, 256, 1024};
  struct Row {
    double parameters;
    int stage;
    double gigabytes[6];
  };
  const Row rows[] = {
      {7.5e9, 2, {120, 41.3, 21.6, 16.6, 15.4, 15.1}},
      {7.5e9, 3, {120, 30, 7.5, 1.88, 0.47, 0.12}},
      {128e9, 2, {2048, 704, 368, 284, 263, 257}},
      {128e9, 3, {2048, 512, 128, 32, 8, 2}},
      {1e12, 2, {16000, 5500, 2875, 2218, 2054, 2013}},
      {1e12, 3, {16000, 4000, 1000, 250, 62.5, 15.6}},
  };
  for (const Row& row : rows) {
    for (size_t i = 0; i < 6; ++i) {
      const Json out = plan({{"parameters", row.parameters}, {"layers", 100}},
                            paper_config(row.stage), degrees[i]);
      EXPECT_NEAR(out["memory_per_rank"]["model_states"].get<double>() / 1e9 / row.gigabytes[i], 1,
                  0.05)
          << row.parameters << " parameters, stage " << row.stage << ", degree " << degrees[i];
    }
  }
}

TEST(Plan, StageOneIsStageTwo) {
  const Json model = {{"parameters", 1e9}, {"layers", 10}};
  EXPECT_EQ(plan(model, paper_config(1), 8)["memory_per_rank"],
            plan(model, paper_config(2), 8)["memory_per_rank"]);
}

TEST(Plan, MeasuredAtWorldOne) {
  const Json changes[] = {
      Json::object(),
      {{"bf16", {{"enabled", true}}}},
      {{"bf16", {{"enabled", true}, {"split_master", true}}}},
      {{"bf16",
        {{"enabled", true},
         {"bf16_master_weights_and_grads", true},
         {"bf16_optimizer_states", true}}},
       {"zero_optimization", {{"stage", 2}}}},
      {{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}},
      {{"optimizer", {{"type", "Lion"}}}},
      {{"optimizer", {{"type", "Muon"}}}}};
  const Json model = with(model_config(), {{"n_embd", 64}, {"vocab_size", 512}});
  for (const Json& change : changes) {
    const Json config = with(base_config(), change);
    const Json planned = plan(model, config, 1)["memory_per_rank"];
    Engine engine(dump_json(config), models::Model::create(model, 3), nullptr);
    const MemoryAccount& account = engine.model()->device()->account();
    const std::pair<const char*, MemoryTag> tags[] = {{"parameters", MemoryTag::kParameters},
                                                      {"gradients", MemoryTag::kGradients},
                                                      {"optimizer", MemoryTag::kOptimizer}};
    for (const auto& [name, tag] : tags) {
      EXPECT_NEAR(planned[name].get<double>() / static_cast<double>(account.now(tag)), 1, 0.05)
          << name << " with " << dump_json(change);
    }
  }
}

// Beside a GPU: weights and buckets there, the rest on the host.
TEST(Plan, OffloadedOptimizer) {
  const Json model = {{"parameters", 64e6}, {"layers", 8}};
  const auto planned = [&](const Json& change) {
    return plan(model,
                with(with(base_config(), {{"bf16", {{"enabled", true}}},
                                          {"zero_optimization",
                                           {{"stage", 2},
                                            {"reduce_bucket_size", 1000000},
                                            {"offload_optimizer", {{"device", "cpu"}}}}}}),
                     change),
                1);
  };
  const Json out = planned(Json::object());
  const Json& gpu = out["memory_per_rank"];
  const Json& host = out["host_memory_per_rank"];
  EXPECT_EQ(gpu["parameters"], 2 * 64'000'000);
  EXPECT_EQ(gpu["gradients"], 0);
  EXPECT_EQ(gpu["optimizer"], 0);
  EXPECT_EQ(gpu["communication"], 3 * 4 * 8'000'000);  // a layer is larger than a bucket
  EXPECT_EQ(host["parameters"], 4 * 64'000'000);
  EXPECT_EQ(host["gradients"], 4 * 64'000'000);
  EXPECT_EQ(host["optimizer"], 8 * 64'000'000);
  EXPECT_EQ(host["communication"], 4 * 4 * (8 << 20));
  EXPECT_EQ(host["total"], 16 * 64'000'000 + 4 * 4 * (8 << 20));
  const Json small =
      planned({{"bf16", {{"split_master", true}}},
               {"data_types", {{"grad_accum_dtype", "bf16"}}},
               {"zero_optimization",
                {{"sub_group_size", 100000}, {"offload_optimizer", {{"buffer_count", 2}}}}}});
  EXPECT_EQ(small["memory_per_rank"]["parameters"], 2 * 64'000'000);
  EXPECT_EQ(small["host_memory_per_rank"]["parameters"], 4 * 64'000'000);
  EXPECT_EQ(small["host_memory_per_rank"]["gradients"], 2 * 64'000'000);
  EXPECT_EQ(small["host_memory_per_rank"]["communication"], 2 * 4 * (3 << 15));
  // Weights, too: rounded ones beside masters, and else those of the masters.
  const Json param = {
      {"zero_optimization", {{"stage", 3}, {"offload_param", {{"device", "cpu"}}}}}};
  const Json weights = planned(param);
  EXPECT_EQ(weights["memory_per_rank"]["parameters"], 0);
  EXPECT_EQ(weights["host_memory_per_rank"]["parameters"], (4 + 2) * 64'000'000);
  const Json halves = planned(with(param, {{"bf16", {{"split_master", true}}}}));
  EXPECT_EQ(halves["memory_per_rank"]["parameters"], 0);
  EXPECT_EQ(halves["host_memory_per_rank"]["parameters"], 4 * 64'000'000);
  const Json without = planned({{"zero_optimization", {{"offload_optimizer", nullptr}}}});
  EXPECT_FALSE(without.contains("host_memory_per_rank"));
}

// State in files beside a GPU: the host holds what travels, and what `ratio` and `max_in_cpu`
// leave.
TEST(Plan, FilesBesideAGpu) {
  constexpr int64_t kMiB = int64_t{1} << 20, kElements = 64 * kMiB;
  const Json model = {{"parameters", kElements}, {"layers", 8}};
  const auto planned = [&](const Json& change) {
    PlanOptions options;
    options.on_gpu = true;
    const Json files = {
        {"device", "nvme"}, {"nvme_path", "/x"}, {"pipeline_read", true}, {"pipeline_write", true}};
    const Json config =
        with(base_config(), {{"bf16", {{"enabled", true}}},
                             {"zero_optimization", {{"stage", 2}, {"offload_optimizer", files}}}});
    return plan_training(model, dump_json(with(config, change)), options);
  };
  const Json out = planned(Json::object());
  const Json& files = out["files_per_rank"];
  EXPECT_EQ(out["memory_per_rank"]["parameters"], 2 * kElements);
  EXPECT_EQ(out["memory_per_rank"]["optimizer"], 0);
  EXPECT_EQ(files["parameters"], 4 * kElements);
  EXPECT_EQ(files["gradients"], 4 * kElements);
  EXPECT_EQ(files["optimizer"], 8 * kElements);
  for (const char* use : {"parameters", "gradients", "optimizer"}) {
    EXPECT_EQ(out["host_memory_per_rank"][use], 0) << use;
  }
  // A part of 1 MiB elements of every array that is read, updated and written.
  EXPECT_EQ(out["host_memory_per_rank"]["io"], 3 * 16 * kMiB);
  EXPECT_EQ(out["host_memory_per_rank"]["communication"], 4 * 4 * kMiB);
  const Json half = planned({{"zero_optimization", {{"offload_optimizer", {{"ratio", 0.5}}}}}});
  EXPECT_EQ(half["host_memory_per_rank"]["optimizer"], 4 * kElements);
  EXPECT_EQ(half["files_per_rank"]["optimizer"], 4 * kElements);
  const Json split = planned({{"bf16", {{"split_master", true}}}});
  EXPECT_EQ(split["files_per_rank"]["parameters"], 4 * kElements);
  EXPECT_EQ(split["host_memory_per_rank"]["parameters"], 0);
  // Weights rest on the host as well, in files or in memory.
  const auto weights = [](const char* device) {
    return Json{
        {"zero_optimization",
         {{"stage", 3},
          {"offload_param", {{"device", device}, {"nvme_path", "/x"}, {"max_in_cpu", 0}}}}}};
  };
  for (const bool bf16 : {true, false}) {
    SCOPED_TRACE(bf16);
    const Json type = {{"bf16", {{"enabled", bf16}}}};
    const Json stored = planned(with(weights("nvme"), type));
    EXPECT_EQ(stored["memory_per_rank"]["parameters"], 0);
    EXPECT_EQ(stored["host_memory_per_rank"]["parameters"], 0);
    EXPECT_EQ(stored["files_per_rank"]["parameters"], (bf16 ? 6 : 4) * kElements);
    const Json held = planned(with(weights("cpu"), type));
    EXPECT_EQ(held["memory_per_rank"]["parameters"], 0);
    EXPECT_EQ(held["host_memory_per_rank"]["parameters"], (bf16 ? 2 : 4) * kElements);
    EXPECT_EQ(held["files_per_rank"]["parameters"], 4 * kElements);
  }
}

// Of state that a GPU shares with its host, the GPU has what its host has not.
TEST(Plan, AShareOfTheStateStaysOnTheGpu) {
  constexpr int64_t kElements = int64_t{64} << 20;
  const Json model = {{"parameters", kElements}, {"layers", 8}};
  const auto planned = [&](double ratio, int stage, const Json& more) {
    PlanOptions options;
    options.on_gpu = true;
    Json zero = {{"stage", stage},
                 {"reduce_scatter", false},
                 {"offload_optimizer", {{"device", "cpu"}, {"ratio", ratio}}}};
    if (stage == 3) zero["offload_param"] = {{"device", "cpu"}};
    const Json config = with(with(base_config(), {{"zero_optimization", zero}}), more);
    return plan_training(model, dump_json(config), options);
  };
  struct Case {
    Json precision;
    int stage;
    int64_t weights, masters;  // bytes of each on the host, of what is shared in `masters`
  };
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  for (const Case& one :
       {Case{bf16, 2, 0, 4}, Case{Json::object(), 2, 0, 4}, Case{bf16, 3, 2, 4},
        Case{{{"bf16", {{"enabled", true}, {"split_master", true}}}}, 2, 0, 4},
        Case{{{"bf16", {{"enabled", true}, {"split_master", true}}}}, 3, 2, 2},
        Case{Json::object(), 3, 4, 4}}) {  // a copy beside masters that are not all on the host
    SCOPED_TRACE(dump_json(one.precision) + " at stage " + std::to_string(one.stage));
    const Json all = planned(1, one.stage, one.precision);
    const Json some = planned(0.25, one.stage, one.precision);
    const auto grown = [&](const char* use) {
      return some["memory_per_rank"][use].get<int64_t>() -
             all["memory_per_rank"][use].get<int64_t>();
    };
    EXPECT_EQ(grown("parameters"), one.masters * kElements * 3 / 4);
    EXPECT_EQ(grown("gradients"), 4 * kElements * 3 / 4);
    EXPECT_EQ(grown("optimizer"), 8 * kElements * 3 / 4);
    const Json& host = some["host_memory_per_rank"];
    EXPECT_EQ(host["parameters"], one.weights * kElements + one.masters * kElements / 4);
    EXPECT_EQ(host["gradients"], 4 * kElements / 4);
    EXPECT_EQ(host["optimizer"], 8 * kElements / 4);
  }
  const Json muon = {{"optimizer", {{"type", "Muon"}, {"params", {{"lr", 1e-3}}}}}};
  EXPECT_EQ(planned(0.25, 2, muon)["host_memory_per_rank"]["gradients"], 4 * kElements);
}

TEST(Plan, Traffic) {
  const Json model = {{"parameters", 64e6}, {"layers", 4}};
  const double n = 64e6;
  const auto sent = [](const Json& out, const char* key) {
    double sum = 0;
    for (const Json& one : out["moved_per_step"]) sum += one[key].get<double>();
    return sum;
  };
  EXPECT_TRUE(plan(model, paper_config(2), 1)["moved_per_step"].empty());
  Json config = paper_config(0);
  config["communication_data_type"] = "bf16";
  for (const int stage : {0, 2}) {
    config["zero_optimization"]["stage"] = stage;
    // Twice the model, less the own part.
    EXPECT_NEAR(sent(plan(model, config, 8), "within_node"), 2 * 2 * n * 7 / 8, n * 0.01);
    const Json nodes = plan(model, config, 8, 4);
    EXPECT_NEAR(sent(nodes, "within_node"), 2 * 2 * n * 3 / 4, n * 0.01);
    EXPECT_NEAR(sent(nodes, "across_nodes"), 2 * 2 * n / 2 / 4, n * 0.01);
  }
  // Stage 3 gathers once more where weights are not kept between forward and backward.
  config["zero_optimization"] = {{"stage", 3}, {"stage3_max_reuse_distance", 0}};
  const double thrice = sent(plan(model, config, 8), "within_node");
  EXPECT_GT(thrice, 2.7 * 2 * n * 7 / 8);
  EXPECT_LE(thrice, 3.01 * 2 * n * 7 / 8);
}

// What ZeRO++ and MiCS are for: fewer bytes between nodes, for more memory at times.
TEST(Plan, SeveralNodes) {
  const Json model = {{"parameters", 64e6}, {"layers", 4}};
  const double n = 64e6;
  Json plain = paper_config(3);
  plain["gradient_accumulation_steps"] = 2;
  plain["communication_data_type"] = "bf16";
  plain["zero_optimization"]["stage3_max_reuse_distance"] = 0;
  const auto with_keys = [&](const Json& keys) {
    return plan(model, with(plain, {{"zero_optimization", keys}}), 8, 4);
  };
  const auto across = [](const Json& out, std::string_view what) {
    double sum = 0;
    for (const Json& one : out["moved_per_step"]) {
      if (one["of"].get<std::string>().starts_with(what)) sum += one["across_nodes"].get<double>();
    }
    return sum;
  };
  const auto parameters = [](const Json& out) {
    return out["memory_per_rank"]["parameters"].get<double>();
  };
  const Json base = with_keys(Json::object());
  const Json coded = with_keys({{"zero_quantized_weights", true}});
  EXPECT_LE(across(coded, "weights"), 0.52 * across(base, "weights"));
  EXPECT_GE(across(coded, "weights"), 0.5 * across(base, "weights"));
  EXPECT_EQ(across(coded, "gradients"), across(base, "gradients"));

  const Json second = with_keys({{"zero_hpz_partition_size", 4}});
  EXPECT_NEAR(across(second, "weights"), 2 * n / 2 / 4, 0.01 * n);  // once per step
  EXPECT_NEAR(parameters(second) - parameters(base), 2 * n / 4, 0.01 * n);

  const Json gradients = with_keys({{"zero_quantized_gradients", true}});
  EXPECT_LE(across(gradients, "gradients"), 0.27 * across(base, "gradients"));
  EXPECT_GE(across(gradients, "gradients"), 0.25 * across(base, "gradients"));
  const Json kept =
      with_keys({{"zero_quantized_gradients", true}, {"zeropp_loco_param", Json::object()}});
  EXPECT_NEAR(kept["memory_per_rank"]["gradients"].get<double>() -
                  gradients["memory_per_rank"]["gradients"].get<double>(),
              n + n / 4, 0.02 * n);

  const Json mics = with_keys({{"mics_shard_size", 4}});
  EXPECT_EQ(across(mics, "weights"), 0);
  EXPECT_NEAR(across(mics, "gradients"), 2 * 2 * n / 4 / 2, 0.01 * n);  // bf16 sums, once per step
  EXPECT_NEAR(parameters(mics) / parameters(base), 2, 0.01);
  EXPECT_THROW(with_keys({{"mics_shard_size", 3}}), Error);
  EXPECT_THROW(with_keys({{"zero_hpz_partition_size", 3}}), Error);
}

TEST(Plan, Refuses) {
  const Json model = {{"parameters", 1e6}};
  EXPECT_THROW(plan(model, paper_config(2), 0), Error);
  EXPECT_THROW(plan(model, paper_config(2), 8, 3), Error);
  EXPECT_THROW(plan({{"parameters", -1}}, paper_config(2), 8), Error);
  EXPECT_THROW(plan({{"parameters", 1e30}}, paper_config(2), 8), Error);
  EXPECT_THROW(plan({{"parameters", 10}, {"layer", 2}}, paper_config(2), 8), Error);
  EXPECT_THROW(plan(Json::array(), paper_config(2), 8), Error);
  EXPECT_THROW(plan(model, {{"nonsense", 1}}, 8), Error);
}

}  // namespace
}  // namespace ds::engine_test
