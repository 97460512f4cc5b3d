// ZeRO over GPUs: engines of several ranks with a GPU each do what one with the joint batch does,
// whatever the stage, and what ranks on the CPU do.
#include <gmock/gmock.h>

#include "cuda/zero_world.h"
#include "engine/plan.h"
#include "models/adapters.h"
#include "models/lora.h"

namespace ds::gpu_zero {
namespace {

struct Variant {
  int world;
  bool bf16;
  int accumulation;
};
void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.world << " ranks, " << (variant.bf16 ? "bf16" : "fp32") << ", accumulation "
       << variant.accumulation;
}

class GpuStages : public GpuZero, public ::testing::WithParamInterface<Variant> {
 protected:
  int least_gpus() const override { return GetParam().world; }
};

TEST_P(GpuStages, FollowOneGpuWithTheJointBatch) {
  const Variant& variant = GetParam();
  const auto config = [&](int stage, int ranks) {
    return with(zero_config(stage, fine(), variant.bf16 ? kBf16 : Json::object()),
                {{"gradient_accumulation_steps", variant.accumulation},
                 {"train_micro_batch_size_per_gpu", variant.world / ranks}});
  };
  const auto single = make_rank_engine(Where::kGpus, {1, config(0, 1), 3, tiny_model()},
                                       make_single_communicator());
  const Trained alone = train_steps(*single, 3);
  EXPECT_NE(alone.losses[2], alone.losses[0]);
  std::optional<Trained> first;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Job run{variant.world, config(stage, variant.world), 3, tiny_model()};
    const Trained ranks = train(Where::kGpus, run);
    // fp32: sums in another order. bf16 rounds gradients before they are reduced, and Adam's first
    // steps make of the sign of a small one a step of the rate.
    expect_near(ranks, alone, variant.bf16 ? 2e-2 : 1e-5, variant.bf16 ? 5e-2 : 2e-3);
    if (!first) {
      first = ranks;
    } else if (kSumsInOrder) {
      expect_same(ranks, *first);  // the stage changes where state lies, not what is computed
    }
    if (stage == 0 || stage == 3) expect_same(train(Where::kGpus, run), ranks);
  }
}

std::vector<Variant> variants() {
  return {{1, false, 1}, {2, false, 2}, {2, true, 1}, {3, false, 1},
          {3, true, 2},  {4, false, 1}, {4, true, 1}};
}

INSTANTIATE_TEST_SUITE_P(Worlds, GpuStages, ::testing::ValuesIn(variants()), [](const auto& test) {
  return str_cat(test.param.world, "Ranks", test.param.bf16 ? "Bf16" : "Fp32", "Accumulation",
                 test.param.accumulation);
});

struct Kind {
  const char* name;
  Json zero;  // with reduce-scatter and fine buckets where it says nothing
  Json more;
  int world = 2;
  int ranks_per_node = 0;
  std::vector<int> stages = {0, 1, 2, 3};
  bool same_at_all_stages = true;
  double loss = 1e-5, weight = 2e-4;  // largest differences from ranks on the CPU
  std::function<void(models::Model&)> prepare = [](models::Model&) {};
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::vector<Kind> kinds() {
  const Json none = Json::object();
  const Json three = {{"stage3_param_persistence_threshold", 0}};
  const auto with_optimizer = [](const char* type, double lr) {
    return Json{{"optimizer", {{"type", type}, {"params", {{"lr", lr}}}}},
                {"zero_allow_untested_optimizer", true}};
  };
  const double coarse = 2e-2, far = 5e-2;  // of 8 bits
  return {
      {.name = "SplitMasters",
       .zero = none,
       .more = {{"bf16", {{"enabled", true}, {"split_master", true}}}},
       .loss = coarse,
       .weight = far},
      {.name = "Fp16",
       .zero = none,
       .more = {{"fp16", {{"enabled", true}, {"initial_scale_power", 8}}}},
       .loss = 1e-2,
       .weight = far},
      {.name = "Lamb", .zero = none, .more = with_optimizer("Lamb", 1e-2)},
      {.name = "Muon",
       .zero = {{"reduce_scatter", false}},
       .more = with_optimizer("Muon", 2e-2),
       .world = 3,
       .loss = 1e-4,
       .weight = 2e-2},
      {.name = "Adapters",
       .zero = none,
       .more = kBf16,
       .world = 3,
       .loss = coarse,
       .weight = far,
       .prepare =
           [](models::Model& model) {
             models::LoraOptions lora;
             lora.r = 3;
             lora.target_modules = {"all-linear"};
             lora.seed = 5;
             models::add_lora(model, lora);
           }},
      {.name = "Fp8",
       .zero = none,
       .more = with(kBf16, {{"fp8", {{"enabled", true}}}}),
       .stages = {0, 2, 3},
       .loss = coarse,
       .weight = far},
      {.name = "CheckpointedOnTheHost",
       .zero = none,
       .more = {{"activation_checkpointing", {{"enabled", true}, {"cpu_checkpointing", true}}}},
       .stages = {0, 3}},
      {.name = "CheckpointedWithoutOverlap",
       .zero = {{"overlap_comm", false}},
       .more = {{"activation_checkpointing", {{"enabled", true}}}, {"gradient_clipping", 0.1}}},
      {.name = "Tiles",
       .zero = {{"stage3_tile_size", 400}},
       .more = none,
       .stages = {3},
       .same_at_all_stages = false},
      {.name = "SecondCopies",
       .zero = {{"zero_hpz_partition_size", 2}},
       .more = {{"gradient_accumulation_steps", 2}},
       .world = 4,
       .stages = {3}},
      {.name = "ShardGroups",
       .zero = {{"mics_shard_size", 2}, {"mics_hierarchical_params_gather", false}},
       .more = none,
       .world = 4,
       .stages = {3},
       .same_at_all_stages = false},
      {.name = "QuantizedWeights",
       .zero = with(three, {{"zero_quantized_weights", true}}),
       .more = kBf16,
       .stages = {3},
       .same_at_all_stages = false,
       .loss = coarse,
       .weight = far},
      {.name = "QuantizedGradients",
       .zero = with(three, {{"zero_quantized_gradients", true},
                            {"zeropp_loco_param", {{"err_beta", 0.8}, {"reset_T", 4}}}}),
       .more = none,
       .world = 4,
       .ranks_per_node = 2,
       .stages = {3},
       .same_at_all_stages = false,
       .loss = coarse,
       .weight = far},
      {.name = "HierarchicalGathers",
       .zero = with(three, {{"mics_shard_size", 4}, {"mics_hierarchical_params_gather", true}}),
       .more = none,
       .world = 4,
       .ranks_per_node = 2,
       .stages = {3}},
  };
}

class GpuKinds : public GpuZero, public ::testing::WithParamInterface<Kind> {};

TEST_P(GpuKinds, FollowRanksOnTheCpu) {
  const Kind& kind = GetParam();
  if (gpus_ < kind.world) GTEST_SKIP() << "needs " << kind.world << " GPUs";
  const auto job = [&](int stage, const Json& zero) {
    return Job{kind.world, zero_config(stage, zero, kind.more), 3, tiny_model(), kind.prepare};
  };
  std::optional<Trained> first;
  if (kSumsInOrder && kind.same_at_all_stages && kind.stages.size() == 1) {
    // Where only stage 3 does it: without it the bits are the same.
    first = train(Where::kGpus, job(3, fine()), kind.ranks_per_node);
  }
  for (const int stage : kind.stages) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Job run = job(stage, fine(kind.zero));
    const Trained gpus = train(Where::kGpus, run, kind.ranks_per_node);
    if (stage == kind.stages.back()) {
      const Trained cpu = train(Where::kCpu, run, kind.ranks_per_node);
      expect_near(gpus, cpu, kind.loss, kind.weight);
      EXPECT_NEAR(gpus.evaluated, cpu.evaluated, 5 * kind.loss * cpu.evaluated);
      expect_same(train(Where::kGpus, run, kind.ranks_per_node), gpus);
    }
    if (first && kSumsInOrder && kind.same_at_all_stages) expect_same(gpus, *first);
    if (!first) first = gpus;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuKinds, ::testing::ValuesIn(kinds()),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- what moves, and what is held ----

struct Moved {
  int64_t calls = 0, bytes = 0;
  bool operator==(const Moved&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Moved& moved) {
  return out << moved.calls << " calls, " << moved.bytes << " bytes";
}

TEST_F(GpuZero, PlannedTrafficIsWhatRanksSend) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Json config = zero_config(stage, fine(), kBf16);
    PlanOptions options;
    options.world = 2;
    std::map<std::string, Moved> planned, measured;
    const Json plan = plan_training(tiny_model(), dump_json(config), options);
    for (const Json& one : plan.at("moved_per_step")) {
      Moved& moved = planned[one["collective"].get<std::string>()];
      moved.calls += one["calls"].get<int64_t>();
      moved.bytes += one["within_node"].get<int64_t>() + one["across_nodes"].get<int64_t>();
    }
    on_ranks(Where::kGpus, {2, config, 0, tiny_model()}, [&](Engine& engine, Communicator& comm) {
      const auto traffic = [&] {
        engine.model()->device()->default_stream().synchronize();
        return comm.traffic();
      };
      for (int i = 0; i < 3; ++i) engine.train_batch();
      const TrafficTable before = traffic();
      engine.train_batch();
      const TrafficTable after = traffic();
      if (comm.rank() != 0) return;
      for (size_t i = 0; i < after.size(); ++i) {
        const Moved moved{after[i].calls - before[i].calls,
                          after[i].within_node + after[i].across_nodes - before[i].within_node -
                              before[i].across_nodes};
        if (moved.calls > 0) measured[std::string(collective_name(Collective(i)))] = moved;
      }
    });
    EXPECT_EQ(measured, planned);
  }
}

TEST_F(GpuZero, MemoryIsSharedOut) {
  const Json model = with(tiny_model(0), {{"n_embd", 64}});
  for (const int stage : {0, 1, 3}) {
    const Job run{
        2,
        zero_config(stage,
                    fine({{"reduce_bucket_size", 20000}, {"stage3_max_live_parameters", 30000}}),
                    with(kBf16, {{"data_types", {{"grad_accum_dtype", "bf16"}}}})),
        1, model};
    on_ranks(Where::kGpus, run, [&](Engine& engine, Communicator&) {
      engine.train_batch();
      const auto p = static_cast<double>(engine.model()->parameters().elements());
      const MemoryAccount& account = engine.model()->device()->account();
      const auto now = [&](MemoryTag tag) { return static_cast<double>(account.now(tag)) / p; };
      const double share = stage == 0 ? 1 : 0.5;
      EXPECT_NEAR(now(MemoryTag::kOptimizer), 8 * share, 0.2);
      EXPECT_NEAR(now(MemoryTag::kParameters), 4 * share + 2 * (stage == 3 ? share : 1), 0.25);
      EXPECT_NEAR(now(MemoryTag::kGradients), 2 * share, 0.15);
      // Three buckets, with what travels of them, and the gathered weights: those of a pass do not
      // pile up, however far the host runs ahead of the GPU.
      const int64_t buckets = 3 * (20000 + 128) * (4 + 2);
      EXPECT_LE(account.peak(MemoryTag::kCommunication),
                buckets + (stage == 3 ? (30000 + 20000) * 2 : 0));
    });
  }
}

}  // namespace
}  // namespace ds::gpu_zero
