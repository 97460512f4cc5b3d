// How often the host waits for the GPU in a training step, counted by the stand-in of CUDA.
#include <gmock/gmock.h>

#include "cuda/emulation/stand_in.h"
#include "cuda/model_world.h"
#include "unit/zero/expert_models.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about
using testing::stand_in::host_waits;

template <class Call>
int64_t waits_of(const Call& call) {
  const int64_t before = host_waits();
  call();
  return host_waits() - before;
}

struct Variant {
  const char* name;
  Json model;
  Json config;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

Json optimizer(const char* type) {
  return {{"optimizer", {{"type", type}, {"params", {{"lr", 1e-3}}}}}};
}

std::vector<Variant> variants() {
  const Json fp16 = {{"fp16", {{"enabled", true}, {"initial_scale_power", 2}}}};
  return {{"AdamW", model_config(0.1), Json::object()},
          {"Lion", model_config(0), optimizer("Lion")},
          {"Adagrad", model_config(0), optimizer("Adagrad")},
          {"Sgd", model_config(0), optimizer("SGD")},
          {"Bf16", llama_config(), {{"bf16", {{"enabled", true}}}}},
          {"Fp8", model_config(0.1), {{"bf16", {{"enabled", true}}}, {"fp8", {{"enabled", true}}}}},
          {"Fp16", model_config(0.1), fp16},
          {"Checkpointed", llama_config(), {{"activation_checkpointing", {{"enabled", true}}}}}};
}

class GpuWaits : public GpuModel, public ::testing::WithParamInterface<Variant> {};

TEST_P(GpuWaits, OncePerStep) {
  const auto engine =
      make_engine_on(true, with(base_config(), GetParam().config), GetParam().model);
  engine->train_batch();  // makes what later steps have
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(waits_of([&] { EXPECT_TRUE(engine->train_batch().applied); }), 1) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, GpuWaits, ::testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param.name; });

// Who asks for a loss waits for it.
TEST_F(GpuModel, CallersWaitForTheirLoss) {
  const auto engine = make_engine_on(true, base_config(), llama_config());
  const Tensor ids = ids_tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2);
  const Tensor mask = ids_tensor({0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, 2);
  const Tensor segments = ids_tensor({0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3}, 2);
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      SCOPED_TRACE(::testing::Message() << "step " << step << ", micro batch " << micro);
      Tensor loss;
      const int64_t forward = waits_of([&] {
        loss = engine->forward({ids, ids, mask, segments, {}});
      });
      const int64_t backward = waits_of([&] { engine->backward(loss); });
      const int64_t update = waits_of([&] { engine->step(); });
      if (step == 0) continue;
      EXPECT_EQ(forward, 1);
      EXPECT_EQ(backward, 0);
      EXPECT_EQ(update, micro);
    }
  }
}

// Each layer of experts waits for how many rows its experts got, in each pass that is computed.
TEST_F(GpuModel, LayersOfExpertsWaitOnce) {
  const Json of_gpt = zero_test::gpt_moe({{"mlp_type", "residual"},
                                          {"moe_min_capacity", 1},
                                          {"moe_train_capacity_factor", 0.7},
                                          {"moe_z_loss_coeff", 1e-3}});
  struct Case {
    Json model;
    int64_t layers;
  };
  for (const Case& one : {Case{zero_test::qwen2_moe(), 2}, Case{of_gpt, 1}}) {
    for (const bool recomputed : {false, true}) {
      SCOPED_TRACE(one.model.at("model_type").get<std::string>());
      const auto engine = make_engine_on(
          true,
          with(base_config(), {{"gradient_accumulation_steps", 2},
                               {"activation_checkpointing", {{"enabled", recomputed}}}}),
          one.model);
      engine->train_batch();
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(waits_of([&] { engine->train_batch(); }),
                  1 + 2 * one.layers * (recomputed ? 2 : 1));
      }
    }
  }
}

// These read norms of their own between two passes.
TEST_F(GpuModel, LambWaitsForItsNorms) {
  const auto engine = make_engine_on(true, with(base_config(), optimizer("Lamb")));
  engine->train_batch();
  const int64_t waits = waits_of([&] { engine->train_batch(); });
  EXPECT_GT(waits, 1);
  EXPECT_LE(waits, 4);
}

}  // namespace
}  // namespace ds
