// The plan beside what engines of two and four ranks hold, send and call.
#include "engine/plan.h"

#include "zero_world.h"

namespace ds::zero_test {
namespace {

// Nearly a million parameters, small tensors among them.
Json planned_model() {
  return with(model_config(0), {{"n_embd", 128}, {"n_layer", 4}, {"vocab_size", 640}});
}

Json plan(const Json& model, const Json& config, int world) {
  PlanOptions options;
  options.world = world;
  return plan_training(model, dump_json(config), options);
}

struct Moved {
  int64_t calls = 0;
  int64_t bytes = 0;
  bool operator==(const Moved&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Moved& moved) {
  return out << moved.calls << " calls, " << moved.bytes << " bytes";
}
using MovedBy = std::map<std::string, Moved>;

MovedBy planned(const Json& plan) {
  MovedBy out;
  for (const Json& one : plan["moved_per_step"]) {
    Moved& moved = out[one["collective"].get<std::string>()];
    moved.calls += one["calls"].get<int64_t>();
    moved.bytes += one["within_node"].get<int64_t>() + one["across_nodes"].get<int64_t>();
  }
  return out;
}

// What rank 0 does in a step once the order of weights is known.
MovedBy measured(const Json& model, const Json& config, int world) {
  MovedBy out;
  run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine({world, config, 1, model}, comm);
    for (int i = 0; i < 3; ++i) engine->train_batch();
    const TrafficTable before = comm->traffic();
    engine->train_batch();
    const TrafficTable after = comm->traffic();
    if (comm->rank() != 0) return;
    for (size_t i = 0; i < after.size(); ++i) {
      const Moved moved{after[i].calls - before[i].calls,
                        after[i].within_node + after[i].across_nodes - before[i].within_node -
                            before[i].across_nodes};
      if (moved.calls > 0) out[std::string(collective_name(static_cast<Collective>(i)))] = moved;
    }
  });
  return out;
}

struct Case {
  std::string name;
  int stage;
  Json zero = Json::object();
  Json more = Json::object();
};

std::vector<Case> cases() {
  const Json bf16 = {{"bf16", {{"enabled", true}}}, {"gradient_accumulation_steps", 2}};
  return {
      {"Zero", 0, {{"reduce_bucket_size", 50000}}, bf16},
      {"One", 1, {{"reduce_bucket_size", 50000}}},
      {"Two", 2, {{"reduce_bucket_size", 70001}}, bf16},
      {"Fp8", 1, Json::object(), with(bf16, {{"fp8", {{"enabled", true}}}})},
      {"ThreeFp8", 3, {{"reduce_bucket_size", 50000}}, with(bf16, {{"fp8", {{"enabled", true}}}})},
      {"TwoWithoutScatter", 2, {{"reduce_scatter", false}}},
      {"SmallGathers", 2, {{"allgather_bucket_size", 30000}}},
      {"Three", 3, {{"reduce_bucket_size", 50000}}, bf16},
      {"ThreeWithoutReuse",
       3,
       {{"reduce_bucket_size", 50000},
        {"stage3_max_reuse_distance", 0},
        {"stage3_param_persistence_threshold", 0}}},
      {"ThreeWithLimits",
       3,
       {{"reduce_bucket_size", 30000},
        {"stage3_max_live_parameters", 120000},
        {"stage3_prefetch_bucket_size", 60000},
        {"stage3_param_persistence_threshold", 600}},
       {{"activation_checkpointing", {{"enabled", true}}}, {"gradient_accumulation_steps", 3}}},
      {"ThreeRecomputingEverySecondBlock",
       3,
       {{"reduce_bucket_size", 30000},
        {"stage3_max_live_parameters", 60000},
        {"stage3_param_persistence_threshold", 0},
        {"stage3_max_reuse_distance", 0}},
       {{"activation_checkpointing", {{"enabled", true}, {"checkpoint_every_nth", 2}}}}},
      {"Tiles",
       3,
       {{"reduce_bucket_size", 50000},
        {"stage3_tile_size", 9000},
        {"stage3_max_reuse_distance", 20000},
        {"stage3_param_persistence_threshold", 600}}},
      {"Lamb",
       1,
       {{"reduce_bucket_size", 50000}},
       {{"optimizer", {{"type", "Lamb"}}}, {"zero_allow_untested_optimizer", true}}},
      {"Muon", 3, {{"reduce_scatter", false}}, {{"optimizer", {{"type", "Muon"}}}}},
  };
}

class PlannedTraffic : public ::testing::TestWithParam<Case> {};

TEST_P(PlannedTraffic, IsWhatRanksSend) {
  const Case& one = GetParam();
  const Json config = zero_config(one.stage, one.zero, one.more);
  for (const int world : {2, 4}) {
    SCOPED_TRACE(world);
    EXPECT_EQ(planned(plan(planned_model(), config, world)),
              measured(planned_model(), config, world));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PlannedTraffic, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

// Other families ask for their weights in other orders.
TEST(PlannedTraffic, HoldsForOtherFamilies) {
  const Json llama = {{"model_type", "llama"},      {"vocab_size", 61},
                      {"hidden_size", 64},          {"intermediate_size", 112},
                      {"num_hidden_layers", 3},     {"num_attention_heads", 4},
                      {"num_key_value_heads", 2},   {"max_position_embeddings", 32},
                      {"tie_word_embeddings", true}};
  const Json config = zero_config(3, {{"reduce_bucket_size", 9000},
                                      {"stage3_max_live_parameters", 30000},
                                      {"stage3_prefetch_bucket_size", 9000},
                                      {"stage3_param_persistence_threshold", 0}});
  EXPECT_EQ(planned(plan(llama, config, 2)), measured(llama, config, 2));
}

// Bytes that each stage leaves on a rank, in bytes per parameter: 2 for the weights in bf16, 2 for
// gradients, 12 for masters and moments. Stage 1 spreads gradients too, which ZeRO's does not.
TEST(PlannedMemory, IsWhatRanksHold) {
  const Json more = {{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}};
  for (const int world : {2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(str_cat("world ", world, ", stage ", stage));
      const Json config = zero_config(
          stage, {{"reduce_bucket_size", 50000}, {"stage3_param_persistence_threshold", 0}}, more);
      const Json memory = plan(planned_model(), config, world)["memory_per_rank"];
      run_ranks(world, [&](const std::shared_ptr<Communicator>& comm) {
        auto engine = make_rank_engine({world, config, 1, planned_model()}, comm);
        engine->train_batch();
        engine->train_batch();
        const MemoryAccount& account = engine->model()->device()->account();
        const double p = static_cast<double>(engine->model()->parameters().elements());
        const double share = stage == 0 ? 1 : 1.0 / world;
        const double held = (2 * (stage == 3 ? share : 1) + 2 * share + 12 * share) * p;
        double peak = 0;
        for (const auto& [name, tag] : {std::pair("parameters", MemoryTag::kParameters),
                                        std::pair("gradients", MemoryTag::kGradients),
                                        std::pair("optimizer", MemoryTag::kOptimizer)}) {
          EXPECT_NEAR(memory[name].get<double>() / static_cast<double>(account.peak(tag)), 1, 0.05)
              << name;
          peak += static_cast<double>(account.peak(tag));
        }
        EXPECT_NEAR(peak / held, 1, 0.05);
      });
    }
  }
}

}  // namespace
}  // namespace ds::zero_test
