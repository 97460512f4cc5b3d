// Layers of experts over GPUs: the stages of ZeRO and ranks that share experts do what they do on
// the CPU.
#include <gmock/gmock.h>

#include "cuda/zero_world.h"
#include "unit/zero/expert_models.h"

namespace ds::gpu_zero {
namespace {

struct ExpertVariant {
  std::string name;
  Json model;
  Json more;
  int world = 2;
  int shared_by = 1;  // ranks that share the experts
  // Largest differences from ranks on the CPU. In 16 bits a token may choose another expert where
  // the two round apart.
  double loss = 1e-5, weight = 2e-3;
};
void PrintTo(const ExpertVariant& variant, std::ostream* out) { *out << variant.name; }

std::vector<ExpertVariant> expert_variants() {
  const Json mixtral = zero_test::mixtral(), qwen2 = zero_test::qwen2_moe();
  const Json top2 = zero_test::gpt_moe({{"moe_top_k", 2},
                                        {"moe_min_capacity", 1},
                                        {"moe_train_capacity_factor", 0.7},
                                        {"moe_router_score_function", "sigmoid"},
                                        {"moe_router_enable_expert_bias", true}});
  const Json recomputed = {{"gradient_accumulation_steps", 2},
                           {"activation_checkpointing", {{"enabled", true}}}};
  const double coarse = 3e-2, far = 5e-2;
  return {{"Mixtral", mixtral, Json::object()},
          {"Top2WithBias", top2, recomputed, 3},
          {"Qwen2Bf16", qwen2, kBf16, 2, 1, coarse, far},
          {"DeepSeekV3",
           zero_test::deepseek("deepseek_v3", {{"moe_router_bias_update_rate", 0.01}}), recomputed},
          {"SharedMixtral", mixtral, recomputed, 2, 2},
          {"SharedQwen2OfFour", qwen2, Json::object(), 4, 2},
          {"SharedTop2Bf16", top2, kBf16, 2, 2, coarse, far}};
}

class GpuExpertRanks : public GpuZero, public ::testing::WithParamInterface<ExpertVariant> {};

TEST_P(GpuExpertRanks, FollowRanksOnTheCpuAtEveryStage) {
  const ExpertVariant& variant = GetParam();
  if (gpus_ < variant.world) GTEST_SKIP() << "needs " << variant.world << " GPUs";
  Json more = variant.more;
  if (variant.shared_by > 1) {
    more["expert_parallel"] = {{"enabled", true}, {"autoep_size", variant.shared_by}};
  }
  std::optional<Trained> first;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(str_cat("stage ", stage));
    const Job run{variant.world, zero_config(stage, fine(), more), 3, variant.model};
    const Trained gpus = train(Where::kGpus, run);
    if (!first) {
      EXPECT_NE(gpus.losses[2], gpus.losses[0]);
      expect_near(gpus, train(Where::kCpu, run), variant.loss, variant.weight);
    } else if (kSumsInOrder) {
      expect_same(gpus, *first);
    }
    if (!first) first = gpus;
    if (stage == 3) expect_same(train(Where::kGpus, run), gpus);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuExpertRanks, ::testing::ValuesIn(expert_variants()),
                         [](const auto& test) { return test.param.name; });

// The optimizer's state lies in the host's memory, which updates with the CPU's arithmetic.
TEST_F(GpuZero, ExpertsWithAnOffloadedOptimizer) {
  const Json offload = {{"zero_optimization", {{"offload_optimizer", {{"device", "cpu"}}}}}};
  for (const int stage : {1, 3}) {
    Job run{2, zero_config(stage, fine()), 3, zero_test::mixtral()};
    const Trained plain = train(Where::kGpus, run);
    run.config.merge_patch(offload);
    expect_near(train(Where::kGpus, run), plain, 1e-5, 2e-4);
  }
}

}  // namespace
}  // namespace ds::gpu_zero
