// Weights, gradients and states that a program reads, sets or clamps on several ranks, in every
// precision; clipping.
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Combine;
using ::testing::Values;

const std::vector<Shape> kValueShapes = {{23, 5}, {7}, {1}, {6, 4}};

class ReadAndSet : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  Json config(const std::vector<Json>& changes = {}) const {
    std::vector<Json> all = {{{"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.5}}}}},
                              {"zero_allow_untested_optimizer", true}},
                             precision_config(std::get<1>(GetParam()))};
    all.insert(all.end(), changes.begin(), changes.end());
    return given_config(std::get<0>(GetParam()), all);
  }
  DType type() const { return type_of(std::get<1>(GetParam())); }
};

INSTANTIATE_TEST_SUITE_P(Everywhere, ReadAndSet,
                         Combine(Values(0, 1, 2, 3), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) {
                           return str_cat("Stage", std::get<0>(one.param), "_",
                                          std::get<1>(one.param));
                         });

// Gradients are read (the mean at stage 3, where they have left; below it the rank's own, until the
// step), set, come back exactly, carry the loss scale, and are what the step takes; of a frozen
// parameter there are none.
TEST_P(ReadAndSet, GradientsOnSeveralRanks) {
  run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config()), given_model(kValueShapes, type(), {3}), comm);
    const auto scale = static_cast<float>(engine.loss_scale());
    const std::vector<float> before = values(engine);
    give_exact(engine, comm->rank(), 0);
    for (int64_t id = 0; id < 3; ++id) {
      const Tensor mean = engine.gradients().get(str_cat("p", id));
      for (int64_t i = 0; i < mean.elements(); ++i) {
        const float own = exact_gradient(id, i, comm->rank(), 0);
        float sum = 0;
        for (int rank = 0; rank < 3; ++rank) sum += exact_gradient(id, i, rank, 0);
        // A third is rounded to the type that gradients travel in.
        const bool left = std::get<0>(GetParam()) == 3;
        ASSERT_NEAR(mean.data<float>()[i] / scale, left ? sum / 3 : own, left ? 4e-3 : 0);
      }
      const Tensor wanted =
          tensor_of(mean.shape(), [&](int64_t i) { return scale * exact_gradient(id, i, 9, 9); });
      engine.gradients().set(str_cat("p", id), wanted);
      EXPECT_TRUE(same_bits(flat(engine.gradients().get(str_cat("p", id))), flat(wanted)));
    }
    error_of(Code::kNotFound, [&] { engine.gradients().get("p3"); });
    error_of(Code::kNotFound, [&] { engine.values().optimizer_state("p3", "momentum_buffer"); });
    EXPECT_EQ(flat(engine.model()->get("p3")).size(), 24u);
    EXPECT_TRUE(engine.step().applied);
    const std::vector<float> after = values(engine);
    size_t at = 0;
    for (int64_t id = 0; id < 4; ++id) {
      for (int64_t i = 0; i < kValueShapes[static_cast<size_t>(id)].elements(); ++i, ++at) {
        const float moved = id == 3 ? 0 : 0.5f * exact_gradient(id, i, 9, 9);
        ASSERT_EQ(after[at], before[at] - moved) << id << " " << i;
      }
    }
  });
}

// Values that are set arrive in the fp32 master and in what computes.
TEST_P(ReadAndSet, WeightsAndStatesOnSeveralRanks) {
  const Json adam = {{"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.5}}}}}};
  run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config({adam})), given_model(kValueShapes, type()), comm);
    give_exact(engine, comm->rank(), 0);
    EXPECT_TRUE(engine.step().applied);
    const Tensor weight =
        tensor_of(kValueShapes[0], [](int64_t i) { return static_cast<float>(i % 16) / 16; });
    engine.model()->set("p0", weight);
    EXPECT_TRUE(same_bits(flat(engine.model()->get("p0")), flat(weight)));
    const int64_t ids[] = {0};
    const std::vector<Tensor> seen = engine.scopes().fetch(ids);
    EXPECT_EQ(seen[0].dtype(), type());
    EXPECT_TRUE(same_bits(numbers(seen[0]), flat(weight)));
    engine.scopes().release(ids);
    for (const char* const state : {"exp_avg", "exp_avg_sq"}) {
      engine.values().set_optimizer_state("p0", state, weight);
      EXPECT_TRUE(same_bits(flat(engine.values().optimizer_state("p0", state)), flat(weight)));
      const zero::FlatRange own = engine.values().local_range("p0");
      const std::vector<float> part = flat(engine.values().local("p0", state));
      for (size_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(part[i], weight.data<float>()[own.begin + static_cast<int64_t>(i)]);
      }
    }
  });
}

// Each rank clamps its own part of the gradients that backward left: norm and step are those of the
// clamped ones.
TEST_P(ReadAndSet, ClampedPartsAreWhatTheStepSees) {
  for (const double clipping : {0.0, 0.5}) {
    Json clamped = config({{{"gradient_clipping", clipping}}});
    clamped["zero_optimization"]["reduce_bucket_size"] = 3000;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(clamped), models::Model::create(model_config(), 3), comm);
      const std::vector<float> before = values(engine);
      engine.backward(engine.forward(token_batch(comm->rank(), 0)));
      const double scale = engine.loss_scale();
      const auto most = static_cast<float>(scale / 256);
      const nn::ParameterSet& set = engine.model()->parameters();
      std::vector<double> expected;
      double squares = 0, unclamped = 0;
      for (nn::ParamId id = 0; id < set.size(); ++id) {
        for (const float g : flat(engine.gradients().get(set[id].name))) {
          expected.push_back(std::clamp(g, -most, most) / scale);
          squares += expected.back() * expected.back();
          unclamped += g / scale * (g / scale);
        }
        const Tensor part = engine.values().local(set[id].name, "gradient");
        for (int64_t i = 0; i < part.elements(); ++i) {
          float& g = part.data<float>()[i];
          g = std::clamp(g, -most, most);
        }
        engine.values().set_local(set[id].name, "gradient", part);
      }
      const double norm = std::sqrt(squares);
      EXPECT_LT(norm, 0.9 * std::sqrt(unclamped));
      EXPECT_NEAR(engine.step().grad_norm, norm, 1e-6 * norm);
      const double factor = clipping == 0 ? 1 : std::min(1.0, clipping / norm);
      const std::vector<float> after = values(engine);
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_NEAR(after[i], before[i] - 0.5 * factor * expected[i], 1e-6);
      }
    });
  }
}

// At stage 3 gradients leave before the step, so that there are parts of them to set.
class GradientParts : public ReadAndSet {};

INSTANTIATE_TEST_SUITE_P(Everywhere, GradientParts,
                         Combine(Values(3), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) { return std::get<1>(one.param); });

// Parts that are set while gradients wait in a bucket are what the step takes: what waited does not
// come on top.
TEST_P(GradientParts, ThatAreSetReplaceWhatWaitsInABucket) {
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config()), given_model(kValueShapes, type()), comm);
    const std::vector<float> before = values(engine);
    give_exact(engine, comm->rank(), 0);
    const auto scale = static_cast<float>(engine.loss_scale());
    for (size_t id = 0; id < kValueShapes.size(); ++id) {
      const std::string name = str_cat("p", id);
      const zero::FlatRange own = engine.values().local_range(name);
      engine.values().set_local(name, "gradient", tensor_of({own.elements()}, [&](int64_t i) {
                                  return scale * exact_gradient(static_cast<int64_t>(id),
                                                                own.begin + i, 9, 9);
                                }));
    }
    EXPECT_TRUE(engine.step().applied);
    const std::vector<float> after = values(engine);
    size_t at = 0;
    for (size_t id = 0; id < kValueShapes.size(); ++id) {
      for (int64_t i = 0; i < kValueShapes[id].elements(); ++i, ++at) {
        ASSERT_EQ(after[at], before[at] - 0.5f * exact_gradient(static_cast<int64_t>(id), i, 9, 9));
      }
    }
  });
}

// gradient_clipping 0 clips nothing, however large the norm; 1 is the default.
TEST_P(ReadAndSet, ClippingOfZeroIsNone) {
  for (const int clipping : {0, 1, -1}) {
    Json clipped = config();
    clipped.erase("gradient_clipping");
    if (clipping >= 0) clipped["gradient_clipping"] = clipping;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(clipped), given_model({{16}}, type()), comm);
      const std::vector<float> before = values(engine);
      give(engine, 0, [&](int64_t) { return comm->rank() == 0 ? 4.0f : 0.0f; });
      EXPECT_NEAR(engine.step().grad_norm, 8, 1e-5);
      const double moved = 0.5 * 2 / (clipping == 0 ? 1 : 8);
      const std::vector<float> after = values(engine);
      for (size_t i = 0; i < after.size(); ++i) ASSERT_NEAR(before[i] - after[i], moved, 2e-6);
    });
  }
}

}  // namespace
}  // namespace ds::properties
